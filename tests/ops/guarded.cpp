// SPDX-License-Identifier: Apache-2.0
#include "ops/guarded.h"

#include <cstring>

#include "base/elements.h"
#include "quant/rows.h"

namespace wick::ops {
namespace {

constexpr size_t kGuard = 128;  // bytes, before and after; a multiple of the arena's alignment
constexpr std::byte kPattern{0xff};

// The contents of an operand as a plain array of its dtype.
std::vector<std::byte> plain_bytes(const Arg& arg) {
  if (dtype_is_quantized(arg.dtype)) {
    const int64_t cols = arg.shape.cols();
    const size_t stride = row_bytes(arg.dtype, cols);
    std::vector<std::byte> rows(static_cast<size_t>(arg.shape.rows()) * stride);
    for (int64_t r = 0; r < arg.shape.rows(); ++r) {
      std::vector<float> values(arg.data.begin() + r * cols, arg.data.begin() + (r + 1) * cols);
      quantize_row(arg.dtype, values.data(), cols, rows.data() + static_cast<size_t>(r) * stride);
    }
    return rows;
  }
  size_t count = static_cast<size_t>(arg.shape.elements());
  std::vector<std::byte> bytes(count * dtype_bytes(arg.dtype));
  with_element(arg.dtype, [&](auto zero) {
    using T = decltype(zero);
    for (size_t i = 0; i < count; ++i) {
      const T x = dtype_is_float(arg.dtype) ? from_double<T>(arg.data[i])
                                            : from_double<T>(static_cast<double>(arg.ints[i]));
      std::memcpy(bytes.data() + i * sizeof x, &x, sizeof x);
    }
  });
  return bytes;
}

double element_at(const std::byte* at, DType dtype) {
  return with_element(dtype, [&](auto x) {
    std::memcpy(&x, at, sizeof x);
    return to_double(x);
  });
}

// Bytes of a device's memory as they lie, and back.
std::vector<std::byte> fetch(const Backend& backend, const Buffer& from, size_t bytes) {
  std::vector<std::byte> raw(bytes);
  backend.download(from, DType::kU8, 0, static_cast<int64_t>(bytes), raw.data());
  return raw;
}
BufferPtr put(Backend& backend, const std::vector<std::byte>& raw) {
  BufferPtr made = backend.allocate(DType::kU8, static_cast<int64_t>(raw.size()));
  backend.upload(*made, DType::kU8, 0, static_cast<int64_t>(raw.size()), raw.data());
  return made;
}

}  // namespace

Guarded::Guarded(Backend& backend, const Arg& arg, int64_t gap, bool is_output)
    : backend_(backend),
      arg_(arg),
      is_output_(is_output),
      element_size_(backend.element_bytes(arg.dtype)),
      before_(2 * kGuard +
                  static_cast<size_t>(arg.shape.rows() * (arg.shape.cols() + gap)) * element_size_,
              kPattern) {
  if (arg.shape.rank() != 2 || arg.dtype == DType::kI32) gap = 0;
  first_ = kGuard + static_cast<size_t>(gap / 2) * element_size_;
  operand_ = {.data = nullptr,
              .rows = arg.shape.rows(),
              .cols = arg.shape.cols(),
              .ld = arg.shape.cols() + gap,
              .dtype = arg.dtype};
  if (!is_output || arg.mode != OutMode::kWrite) {
    const int64_t count = arg.shape.elements();
    BufferPtr held = backend.allocate(arg.dtype, count);
    backend.upload(*held, arg.dtype, 0, count, plain_bytes(arg).data());
    const size_t row_bytes = static_cast<size_t>(operand_.cols) * element_size_;
    const std::vector<std::byte> raw =
        fetch(backend, *held, static_cast<size_t>(operand_.rows) * row_bytes);
    for (int64_t r = 0; r < operand_.rows; ++r) {
      std::memcpy(before_.data() + row_offset(r), raw.data() + static_cast<size_t>(r) * row_bytes,
                  row_bytes);
    }
  }
  memory_ = put(backend, before_);
  operand_.data = memory_->address() + first_;
}

Guarded::Guarded(Backend& backend, const Arg& arg, const Operand& operand, const Buffer& prepared)
    : backend_(backend),
      arg_(arg),
      is_output_(false),
      first_(kGuard),
      operand_(operand),
      before_(2 * kGuard + prepared.bytes(), kPattern) {
  const std::vector<std::byte> raw = fetch(backend, prepared, prepared.bytes());
  std::memcpy(before_.data() + first_, raw.data(), raw.size());
  memory_ = put(backend, before_);
  operand_.data = memory_->address() + first_;
}

size_t Guarded::row_offset(int64_t row) const {
  return first_ + static_cast<size_t>(row * operand_.ld) * element_size_;
}

std::vector<std::byte> Guarded::now() const { return fetch(backend_, *memory_, before_.size()); }

bool Guarded::intact() const {
  const std::vector<std::byte> after = now();
  std::vector<std::byte> expected = before_;
  if (is_output_) {
    size_t row_bytes = static_cast<size_t>(operand_.cols) * element_size_;
    for (int64_t r = 0; r < operand_.rows; ++r) {
      std::memcpy(expected.data() + row_offset(r), after.data() + row_offset(r), row_bytes);
    }
  }
  return expected == after;
}

std::vector<std::byte> Guarded::element_bytes() const {
  const std::vector<std::byte> after = now();
  std::vector<std::byte> bytes;
  size_t row_bytes = static_cast<size_t>(operand_.cols) * element_size_;
  for (int64_t r = 0; r < operand_.rows; ++r) {
    const std::byte* row = after.data() + row_offset(r);
    bytes.insert(bytes.end(), row, row + row_bytes);
  }
  return bytes;
}

std::vector<double> Guarded::contents() const {
  const int64_t count = arg_.shape.elements();
  const BufferPtr held = put(backend_, element_bytes());
  const size_t size = dtype_bytes(arg_.dtype);
  std::vector<std::byte> plain(static_cast<size_t>(count) * size);
  backend_.download(*held, arg_.dtype, 0, count, plain.data());
  std::vector<double> values;
  for (int64_t i = 0; i < count; ++i) {
    values.push_back(element_at(plain.data() + static_cast<size_t>(i) * size, arg_.dtype));
  }
  return values;
}

GuardedStep::GuardedStep(Backend& backend, const Case& c, Dir dir)
    : backend_(backend), plan_(one_step_plan(c, dir)) {
  Selection selection = backend.select(plan_);
  Bindings bindings(plan_.values.size());
  for (size_t id = 0; id < bindings.size(); ++id) {
    const Value& v = plan_.values[id];
    if (v.kind != Kind::kWeight) continue;
    bindings[id] = backend.prepare(v, selection.forms[id], plain_bytes(c.arg(v.name)).data());
  }
  program_ = backend.compile(plan_, bindings);
  auto* flat = dynamic_cast<FlatProgram*>(program_.get());
  WICK_CHECK(flat != nullptr, "guard bytes need a program of plain calls");
  const FlatProgram::Call& call = flat->calls()[0];
  auto add = [&](const std::string& name, bool is_output) {
    auto& list = is_output ? out_ : in_;
    auto& operands = is_output ? out_operands_ : in_operands_;
    size_t at = list.size();
    if (name.empty()) {
      list.push_back(nullptr);
    } else if (!is_output && c.frozen(c.arg(name))) {
      const BufferPtr& held = bindings[static_cast<size_t>(plan_.steps[0].inputs[at])];
      list.push_back(std::make_unique<Guarded>(backend, c.arg(name), call.args.in[at], *held));
    } else {
      list.push_back(std::make_unique<Guarded>(backend, c.arg(name), c.gap(), is_output));
    }
    operands.push_back(name.empty() ? Operand{} : list.back()->operand());
  };
  for (const auto& name : dir == Dir::kForward ? c.fwd_in : c.bwd_in) add(name, false);
  for (const auto& name : dir == Dir::kForward ? c.fwd_out : c.bwd_out) add(name, true);
  fn_ = call.fn;
  args_ = call.args;
  args_.in = in_operands_;
  args_.out = out_operands_;
  scratch_bytes_ = selection.steps[0].scratch;
  if (scratch_bytes_ > 0) {
    scratch_ = put(backend, std::vector<std::byte>(scratch_bytes_ + 2 * kGuard, kPattern));
    args_.scratch = scratch_->address() + kGuard;
  }
}

void GuardedStep::run() { fn_(args_); }

std::string GuardedStep::damage() const {
  for (size_t i = 0; i < in_.size(); ++i) {
    if (in_[i] && !in_[i]->intact()) return cat("input ", i, " or bytes around it changed");
  }
  for (size_t i = 0; i < out_.size(); ++i) {
    if (out_[i] && !out_[i]->intact()) return cat("bytes around output ", i, " changed");
  }
  if (scratch_) {
    const std::vector<std::byte> after = fetch(backend_, *scratch_, scratch_->bytes());
    for (size_t i = 0; i < after.size(); ++i) {
      if ((i < kGuard || i >= kGuard + scratch_bytes_) && after[i] != kPattern) {
        return "bytes around the scratch changed";
      }
    }
  }
  return {};
}

}  // namespace wick::ops
