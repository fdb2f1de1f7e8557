// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cmath>

#include "backend/draw.h"
#include "ops/builder.h"
#include "ops/tolerance.h"

namespace wick::ops {

void Builder::embed() {
  int64_t t = size("T"), v = size("V"), d = size("D");
  c_.attr = EmbedAttr{static_cast<int64_t>(number("untrained", -1))};
  input("table", {v, d});
  ints_by("ids", t, [&](int64_t) { return below(v); });
  output("y", {t, d}, 1);
  input("dy", {t, d});
  accumulate(output("dtable", {v, d}, t));
  c_.fwd_in = {"table", "ids"};
  c_.fwd_out = {"y"};
  c_.bwd_in = {"dy", "ids"};
  c_.bwd_out = {"dtable"};
}

void Builder::linear() {
  int64_t t = size("T"), k = size("K"), n = size("N");
  bool has_bias = size("bias", 0) != 0;
  constexpr std::array kNarrow{Narrow::kNo, Narrow::kBytes, Narrow::kWords};
  const Narrow narrow = kNarrow.at(static_cast<size_t>(size("narrow", 0)));
  c_.attr = LinearAttr{number("scale", 1.0f), narrow};
  input("x", {t, k});
  input("w", {n, k});
  if (has_bias) input("b", {n});
  output("y", {t, n}, k, true);
  input("dy", {t, n});
  output("dx", {t, k}, n, true);
  output("dw", {n, k}, t, true);
  output("db", {n}, t, true);
  if (c_.arg("w").dtype != DType::kBF16) own_unit_terms({"y", "dx"});
  if (narrow == Narrow::kBytes) narrow_terms("y", quant_bits(c_.arg("w").dtype));
  if (narrow == Narrow::kWords) c_.arg("y").integer_terms = kFixedTerms;
  c_.fwd_in = {"x", "w", has_bias ? "b" : ""};
  c_.fwd_out = {"y"};
  c_.bwd_in = {"dy", absent("dw") ? "" : "x", absent("dx") ? "" : "w"};
  c_.bwd_out = {"dx", "dw", has_bias ? "db" : ""};
}

void Builder::rms_norm() {
  int64_t t = size("T"), g = size("G", 1), d = size("D");
  c_.attr = NormAttr{number("eps", 1e-6f), g};
  input("x", {t, g * d});
  input("w", {d}, true, 0.3, 1.0);
  output("y", {t, g * d}, d);
  output("rstd", {t, g}, d);
  input("dy", {t, g * d});
  output("dx", {t, g * d}, d, true);
  output("dw", {d}, t * g, true);
  c_.fwd_in = {"x", "w"};
  c_.fwd_out = {"y", "rstd"};
  c_.bwd_in = {"dy", "x", "w", "rstd"};
  c_.bwd_out = {"dx", "dw"};
}

void Builder::add_rms_norm() {
  int64_t t = size("T"), d = size("D");
  bool has_dsum = size("dsum_given", 1) != 0;
  c_.attr = NormAttr{number("eps", 1e-6f), 1};
  input("a", {t, d});
  input("b", {t, d});
  input("w", {d}, true, 0.3, 1.0);
  output("sum", {t, d}, 1);
  output("y", {t, d}, d);
  output("rstd", {t, 1}, d);
  input("dy", {t, d});
  input("dsum", {t, d});
  output("d", {t, d}, d);
  output("dw", {d}, t, true);
  half_terms({"y", "rstd"});  // of the sum as it is kept
  c_.fwd_in = {"a", "b", "w"};
  c_.fwd_out = {"sum", "y", "rstd"};
  c_.bwd_in = {"dy", has_dsum ? "dsum" : "", "sum", "w", "rstd"};
  c_.bwd_out = {"d", "dw"};
}

void Builder::layer_norm() {
  int64_t t = size("T"), d = size("D");
  bool has_bias = size("bias", 1) != 0;
  c_.attr = NormAttr{number("eps", 1e-5f), 1};
  input("x", {t, d}, true, 1.0, number("shift", 0.5f));
  input("w", {d}, true, 0.3, 1.0);
  if (has_bias) input("b", {d}, true, 0.3);
  output("y", {t, d}, d);
  output("stats", {t, 2}, d);
  input("dy", {t, d});
  output("dx", {t, d}, d, true);
  output("dw", {d}, t, true);
  output("db", {d}, t, true);
  c_.fwd_in = {"x", "w", has_bias ? "b" : ""};
  c_.fwd_out = {"y", "stats"};
  c_.bwd_in = {"dy", "x", "w", "stats"};
  c_.bwd_out = {"dx", "dw", has_bias ? "db" : ""};
}

void Builder::softmax() {
  int64_t t = size("T"), d = size("D");
  input("x", {t, d}, true, number("range", 1.0f));
  output("y", {t, d}, d);
  input("dy", {t, d});
  output("dx", {t, d}, d, true);
  c_.fwd_in = {"x"};
  c_.fwd_out = {"y"};
  c_.bwd_in = {"dy", "y"};
  c_.bwd_out = {"dx"};
}

void Builder::rope() {
  int64_t t = size("T"), h = size("H"), e = size("E"), p = size("P");
  c_.attr = RopeAttr{e};
  input("x", {t, h * e});
  Arg& table = value("table", {p, e});
  for (int64_t row = 0; row < p; ++row) {
    for (int64_t i = 0; i < e; ++i) {
      double rate =
          std::pow(10000.0, -2.0 * static_cast<double>(i % (e / 2)) / static_cast<double>(e));
      double angle = static_cast<double>(row) * rate;
      table.data.push_back(rounded(i < e / 2 ? std::cos(angle) : std::sin(angle), DType::kF32));
    }
  }
  ints_by("positions", t, [&](int64_t) { return below(p); });
  output("y", {t, h * e}, 2);
  input("dy", {t, h * e});
  output("dx", {t, h * e}, 2, true);
  c_.fwd_in = {"x", "table", "positions"};
  c_.fwd_out = {"y"};
  c_.bwd_in = {"dy", "table", "positions"};
  c_.bwd_out = {"dx"};
}

// Without S: packed segments of one pack (causal_self). With S: rows that look at ranges of a
// cache; with empty=1 some of them at none.
void Builder::attention() {
  int64_t t = size("T"), s = size("S", 0), h = size("H"), k = size("K"), e = size("E");
  bool self = s == 0, empty = size("empty", 0) != 0;
  int64_t segments = size("segments", 1);
  if (self) s = t;
  c_.attr = AttentionAttr{.heads = h,
                          .kv_heads = k,
                          .head_dim = e,
                          .scale = number("scale", 1.0f / std::sqrt(static_cast<float>(e))),
                          .window = size("window", 0),
                          .causal_self = self};
  input("q", {t, h * e});
  input("k", {s, k * e});
  input("v", {s, k * e});
  std::vector<int32_t> begin, end;
  for (int64_t i = 0; i < t; ++i) {
    if (self) {
      int64_t segment = i * segments / t;
      begin.push_back(static_cast<int32_t>((segment * t + segments - 1) / segments));
      end.push_back(static_cast<int32_t>(i + 1));
    } else {
      auto first = static_cast<int32_t>(below(s));
      begin.push_back(first);
      end.push_back(empty && rarely() ? first : static_cast<int32_t>(first + 1 + below(s - first)));
    }
  }
  ints("begin", {t}, begin);
  ints("end", {t}, end);
  int64_t terms = e + s;
  output("y", {t, h * e}, terms);
  output("lse", {t, h}, terms);
  input("dy", {t, h * e});
  // dy·v is about sqrt(E) times what is left of it after its mean is taken off.
  int64_t group = h / k, cancelling = terms * std::max<int64_t>(e / 4, 1);
  output("dq", {t, h * e}, cancelling);
  output("dk", {s, k * e}, cancelling * group);
  output("dv", {s, k * e}, terms * group);
  own_unit_terms({"y"});  // probabilities
  // Their gradients are made from probabilities that are rounded, and rounded again.
  own_unit_terms({"dq", "dk", "dv"}, 2);
  c_.fwd_in = {"q", "k", "v", "begin", "end"};
  c_.fwd_out = {"y", "lse"};
  if (!self) return;
  c_.bwd_in = {"dy", "q", "k", "v", "y", "lse", "begin", "end"};
  c_.bwd_out = {"dq", "dk", "dv"};
}

void Builder::gated_act() {
  int64_t t = size("T"), f = size("F");
  used_.push_back("act");
  auto act = c_.keys.find("act");
  bool gelu = act != c_.keys.end() && act->second == "gelu_tanh";
  c_.attr = GatedActAttr{gelu ? Act::kGeluTanh : Act::kSilu};
  input("x", {t, 2 * f}, true, number("range", 1.0f));
  output("y", {t, f}, 1);
  input("dy", {t, f});
  output("dx", {t, 2 * f}, 4);
  c_.fwd_in = {"x"};
  c_.fwd_out = {"y"};
  c_.bwd_in = {"dy", "x"};
  c_.bwd_out = {"dx"};
}

void Builder::add() {
  int64_t t = size("T"), d = size("D");
  input("a", {t, d});
  input("b", {t, d});
  output("y", {t, d}, 1);
  c_.fwd_in = {"a", "b"};
  c_.fwd_out = {"y"};
}

void Builder::scale() {
  int64_t t = size("T"), d = size("D");
  c_.attr = ScaleAttr{number("factor", 0.37f)};
  input("x", {t, d});
  output("y", {t, d}, 1, true);
  input("dy", {t, d});
  output("dx", {t, d}, 1, true);
  c_.fwd_in = {"x"};
  c_.fwd_out = {"y"};
  c_.bwd_in = {"dy"};
  c_.bwd_out = {"dx"};
}

void Builder::bias() {
  int64_t t = size("T"), d = size("D");
  input("x", {t, d});
  input("b", {d});
  output("y", {t, d}, 1);
  input("dy", {t, d});
  output("db", {d}, t, true);
  c_.fwd_in = {"x", "b"};
  c_.fwd_out = {"y"};
  c_.bwd_in = {"dy"};
  c_.bwd_out = {"db"};
}

void Builder::dropout() {
  int64_t t = size("T"), d = size("D");
  c_.attr = DropoutAttr{number("p", 0.3f), static_cast<uint64_t>(size("site", 7))};
  input("x", {t, d});
  std::vector<int32_t> keys;
  for (int64_t i = 0; i < 2 * t; ++i) keys.push_back(static_cast<int32_t>(rng_.next_u32()));
  ints("keys", {t, 2}, keys);
  output("y", {t, d}, 1);
  input("dy", {t, d});
  output("dx", {t, d}, 1, true);
  c_.fwd_in = {"x", "keys"};
  c_.fwd_out = {"y"};
  c_.bwd_in = {"dy", "keys"};
  c_.bwd_out = {"dx"};
}

void Builder::gather_rows() {
  int64_t t = size("T"), m = size("M"), d = size("D");
  input("x", {t, d});
  std::vector<int64_t> order;
  for (int64_t i = 0; i < t; ++i) order.push_back(i);
  for (int64_t i = t - 1; i > 0; --i)
    std::swap(order[static_cast<size_t>(i)], order[static_cast<size_t>(below(i + 1))]);
  ints_by("rows", m,
          [&](int64_t i) { return i >= t || rarely() ? -1 : order[static_cast<size_t>(i)]; });
  output("y", {m, d}, 1);
  input("dy", {m, d});
  output("dx", {t, d}, 1);
  c_.fwd_in = {"x", "rows"};
  c_.fwd_out = {"y"};
  c_.bwd_in = {"dy", "rows"};
  c_.bwd_out = {"dx"};
}

void Builder::head() {
  int64_t m = size("M"), d = size("D"), v = size("V");
  c_.attr = HeadAttr{number("skip_below", 0.0f)};
  input("x", {m, d}, true, number("range", 1.0f) / std::sqrt(static_cast<double>(d)));
  input("w", {v, d});
  ints_by("targets", m, [&](int64_t) { return rarely() ? -1 : below(v); });
  output("logp", {m}, d + v);
  output("lse", {m}, d + v);
  output("dlogp_dx", {m, d}, d + v);
  input("dlogp", {m});
  output("dx", {m, d}, d + v);
  output("dw", {v, d}, d + m, true);
  const int64_t rank = size("R", 0);
  if (rank > 0) {
    input("h", {m, rank}, true, 1.0 / std::sqrt(static_cast<double>(rank)));
    input("b", {v, rank}, true, 0.5);
    output("dlogp_dh", {m, rank}, d + v);
    output("dh", {m, rank}, d + v);
    output("db", {v, rank}, d + m, true);
    own_unit_terms({"dlogp_dh", "dh", "db"});
  }
  own_unit_terms({"dlogp_dx", "dx", "dw"});
  if (c_.arg("w").dtype != DType::kBF16 || rank > 0) unit_terms({"logp", "lse"});
  c_.fwd_in = {"x", "w", "targets"};
  c_.fwd_out = {"logp", "lse", "dlogp_dx"};
  c_.bwd_in = {"dlogp", "x", "w", "targets", "lse", "dlogp_dx"};
  c_.bwd_out = {"dx", "dw"};
  if (rank == 0) return;
  c_.fwd_in.insert(c_.fwd_in.end(), {"h", "b"});
  c_.fwd_out.push_back("dlogp_dh");
  c_.bwd_in.insert(c_.bwd_in.end(), {"h", "b", "dlogp_dh"});
  c_.bwd_out.insert(c_.bwd_out.end(), {"dh", "db"});
}

void Builder::segment_sum() {
  int64_t m = size("M"), s = size("S");
  bool has_dy = size("dy_given", 1) != 0;
  input("x", {m});
  input("weight", {m}, false);
  ints_by("segment", m, [&](int64_t) { return rarely() ? -1 : below(s); });
  output("y", {s}, m);
  input("dy", {s});
  output("dx", {m}, 1);
  c_.fwd_in = {"x", "weight", "segment"};
  c_.fwd_out = {"y"};
  c_.bwd_in = {has_dy ? "dy" : "", "weight", "segment"};
  c_.bwd_out = {"dx"};
}

// Sums of log p of sequences of 1 to 9 tokens; with empty=1 some sequences have none.
void Builder::preference_loss() {
  using Kind = PreferenceAttr::Kind;
  int64_t p = size("P");
  used_.push_back("kind");
  const std::string& kind = c_.keys["kind"];
  const bool empty = size("empty", 0) != 0;
  c_.attr = PreferenceAttr{.kind = kind == "simpo"  ? Kind::kSimpo
                                   : kind == "orpo" ? Kind::kOrpo
                                   : kind == "kto"  ? Kind::kKto
                                                    : Kind::kDpo,
                           .beta = number("beta", 0.1f),
                           .gamma = number("gamma", 0.5f),
                           .smoothing = number("smoothing", 0.0f),
                           .desirable = number("desirable", 1.0f),
                           .undesirable = number("undesirable", 1.0f)};
  Arg& tokens = value("tokens", {2 * p});
  for (int64_t i = 0; i < 2 * p; ++i)
    tokens.data.push_back(empty && rarely() ? 0.0 : static_cast<double>(1 + below(9)));
  for (const char* name : {"logp", "reference"}) {
    Arg& a = value(name, {2 * p});
    a.differentiable = a.name == "logp";
    for (double n : tokens.data)
      a.data.push_back(rounded(-n * (0.2 + std::abs(rng_.normal())), DType::kF32));
  }
  output("loss", {p}, 1);
  output("reward", {2 * p}, 1);
  output("slope", {2 * p}, 1);
  input("dloss", {p});
  output("dlogp", {2 * p}, 1);
  c_.fwd_in = {"logp", "reference", "tokens"};
  c_.fwd_out = {"loss", "reward", "slope"};
  c_.bwd_in = {"dloss", "slope"};
  c_.bwd_out = {"dlogp"};
}

void Builder::kl_head() {
  int64_t m = size("M"), d = size("D"), e = size("E"), v = size("V");
  const double range = number("range", 1.0f);
  c_.attr = KlAttr{number("temperature", 1.0f)};
  input("x", {m, d}, true, range / std::sqrt(static_cast<double>(d)));
  const bool learns = size("dw_wanted", 0) != 0;
  input("w", {v, d}, learns);
  input("tx", {m, e}, false, range / std::sqrt(static_cast<double>(e)));
  input("tw", {v, e}, false);
  ints_by("targets", m, [&](int64_t) { return rarely() ? -1 : below(v); });
  output("kl", {m}, d + e + v);
  output("dkl_dx", {m, d}, d + e + v);
  output("lse", {m, 2}, d + e + v);
  input("dkl", {m});
  output("dx", {m, d}, 1);
  output("dw", {v, d}, d + e + m, true);
  const int64_t rank = size("R", 0);
  if (rank > 0) {
    input("h", {m, rank}, true, 1.0 / std::sqrt(static_cast<double>(rank)));
    input("b", {v, rank}, true, 0.5);
    output("dkl_dh", {m, rank}, d + e + v);
    output("dh", {m, rank}, 1);
    output("db", {v, rank}, d + e + m, true);
  }
  own_unit_terms({"dkl_dx", "dw"});
  if (rank > 0) own_unit_terms({"dkl_dh", "db"});
  if (c_.arg("w").dtype != DType::kBF16 || c_.arg("tw").dtype != DType::kBF16 || rank > 0)
    unit_terms({"kl", "lse"});
  const bool pair = rank > 0, again = learns || pair;
  auto with = [](bool there, const char* name) { return there ? name : ""; };
  c_.fwd_in = {"x", "w", "tx", "tw", "targets", with(pair, "h"), with(pair, "b")};
  c_.fwd_out = {"kl", "dkl_dx", with(again, "lse"), with(pair, "dkl_dh")};
  c_.bwd_in = {"dkl",
               "dkl_dx",
               with(again, "x"),
               with(again, "w"),
               with(again, "tx"),
               with(again, "tw"),
               with(again, "targets"),
               with(again, "lse"),
               with(pair, "h"),
               with(pair, "b"),
               with(pair, "dkl_dh")};
  c_.bwd_out = {"dx", with(learns, "dw"), with(pair, "dh"), with(pair, "db")};
}

void Builder::column_scale() {
  int64_t t = size("T"), n = size("N");
  input("x", {t, n});
  input("m", {n}, true, 0.3, 1.0);
  input("norm", {n}, false, 0.1, 1.0);
  output("y", {t, n}, 1);
  input("dy", {t, n});
  output("dx", {t, n}, 1, true);
  output("dm", {n}, t, true);
  c_.fwd_in = {"x", "m", "norm"};
  c_.fwd_out = {"y"};
  c_.bwd_in = {"dy", "x", "m", "norm"};
  c_.bwd_out = {"dx", "dm"};
}

void Builder::column_norm() {
  int64_t n = size("N"), k = size("K"), r = size("R");
  c_.attr = ColumnNormAttr{number("scale", 0.5f)};
  // Not the squares and products of any matrix, only numbers with a positive sum.
  input("base", {n}, false, 0.1, 9.0 * static_cast<double>(r * r));
  input("wa", {r, n}, false);
  input("a", {r, k}, false, 1.0 / std::sqrt(static_cast<double>(k)));
  input("b", {n, r}, false);
  output("y", {n}, r * r + k);
  c_.fwd_in = {"base", "wa", "a", "b"};
  c_.fwd_out = {"y"};
}

// Some logits are NaN, and with ties=1 many are equal; R is the length of the log.
void Builder::sample() {
  int64_t b = size("B"), v = size("V"), r = size("R", 0);
  bool ties = size("ties", 0) != 0;
  input("logits", {b, v}, false);
  for (double& x : c_.arg("logits").data) {
    if (ties) x = std::round(x);
    if (below(50) == 0) x = NAN;
  }
  // T, p, m: temperature, top-p and min-p in hundredths; k: top-k
  const int64_t hot = size("T", 0), k = size("k", 0), p = size("p", 100), m = size("m", 0);
  c_.fwd_in = {"logits", hot > 0 ? "how" : ""};
  if (hot > 0) {
    std::vector<int32_t> words(static_cast<size_t>(b * kDrawWords));
    for (int64_t i = 0; i < b; ++i)
      to_words({.temperature = static_cast<float>(i % 7 == 6 ? 0 : hot) / 100,
                .top_k = static_cast<int32_t>(k),
                .top_p = static_cast<float>(p) / 100,
                .min_p = static_cast<float>(m) / 100,
                .key = mix_key(17, static_cast<uint64_t>(i)),
                .position = static_cast<int32_t>(i)},
               words.data() + i * kDrawWords);
    ints("how", {b, kDrawWords}, words);
  }
  ints("token", {b}, {});
  c_.fwd_out = {"token", "", ""};
  if (r == 0) return;
  std::vector<int32_t> place;
  for (int64_t i = 0; i < 4 * b; ++i)
    place.push_back(static_cast<int32_t>(i >= 3 * b && rarely() ? -1 : below(100)));
  ints("place", {4, b}, place);
  ints("log", {r, b}, std::vector<int32_t>(static_cast<size_t>(r * b), 7));
  for (const char* name : {"place", "log"}) c_.arg(name).mode = OutMode::kUpdate;
  c_.fwd_out = {"token", "place", "log"};
}

void Builder::copy() {
  int64_t t = size("T"), s = size("S"), d = size("D");
  input("x", {t, d}, false);
  ints_by("rows", t, [&](int64_t i) { return i >= s || rarely() ? -1 : (i * 7 + 3) % s; });
  Arg& y = output("y", {s, d}, 1);
  y.mode = OutMode::kUpdate;
  fill(y);
  // A row may be the target of one row of x only: 7 may divide s.
  Arg& rows = c_.arg("rows");
  for (size_t i = 0; i < rows.ints.size(); ++i)
    for (size_t j = 0; j < i; ++j)
      if (rows.ints[j] == rows.ints[i]) rows.ints[i] = -1;
  c_.fwd_in = {"x", "rows"};
  c_.fwd_out = {"y"};
}

}  // namespace wick::ops
