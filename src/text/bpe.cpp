// SPDX-License-Identifier: Apache-2.0
#include "text/bpe.h"

#include <algorithm>
#include <bit>
#include <queue>
#include <utility>

#include "base/check.h"
#include "text/unicode.h"

namespace wick {

namespace {

// Words up to this many symbols are merged by scanning: faster than a heap, and quadratic only in
// this number.
constexpr size_t kShortWord = 40;
// A word that is longer is unlikely to come again.
constexpr size_t kMaxCachedWord = 64;
constexpr size_t kMaxCachedWords = 1 << 16;
constexpr size_t kJointBits = 20;

}  // namespace

BpeModel::BpeModel(const Json& json, const std::string& where) {
  std::string type = get_string(json, "type", where, "BPE");
  if (type != "BPE")
    fail(ErrorCode::kUnsupported, where, ".type is \"", type,
         "\"; wick does BPE models only, so this tokenizer cannot be used");
  if (double dropout = get_float(json, "dropout", where, 0.0); dropout != 0)
    fail(ErrorCode::kUnsupported, where, ".dropout is ", dropout,
         ": it makes ids random; set it to null");
  fuse_unknown_ = get_bool(json, "fuse_unk", where, false);
  byte_fallback_ = get_bool(json, "byte_fallback", where, false);
  ignore_merges_ = get_bool(json, "ignore_merges", where, false);
  word_prefix_ = get_string(json, "continuing_subword_prefix", where, "");
  word_suffix_ = get_string(json, "end_of_word_suffix", where, "");
  read_vocabulary(json, where);
  read_merges(json, where);

  if (find_member(json, "unk_token")) {
    std::string unknown = get_string(json, "unk_token", where);
    unknown_ = find(unknown);
    if (!unknown_ && !unknown.empty())
      fail(ErrorCode::kCorruptFile, where, ".unk_token is \"", unknown,
           "\", which is not in the vocabulary");
  }
  for (int byte = 0; byte < 256; ++byte) {
    constexpr char kDigits[] = "0123456789ABCDEF";
    auto b = static_cast<uint8_t>(byte);
    byte_ids_[b] = find(unicode::encode(unicode::byte_to_char(b))).value_or(-1);
    fallback_ids_[b] = find(cat("<0x", kDigits[b >> 4], kDigits[b & 15], ">")).value_or(-1);
  }
  // Ends of words, and whole words, are looked at with these.
  if (!word_prefix_.empty() || !word_suffix_.empty() || ignore_merges_) joints_.clear();
}

void BpeModel::read_vocabulary(const Json& json, const std::string& where) {
  const Json* vocabulary = find_member(json, "vocab");
  if (!vocabulary || !vocabulary->is_object())
    fail(ErrorCode::kCorruptFile, where, ".vocab: expected an object of token: id, got ",
         vocabulary ? json_kind(*vocabulary) : "nothing");
  ids_.reserve(vocabulary->size());
  for (const auto& [token, value] : vocabulary->items()) {
    if (!value.is_number_integer())
      fail(ErrorCode::kCorruptFile, where, ".vocab: the id of \"", token, "\" is ",
           json_kind(value), ", expected an integer");
    bool in_range = value.is_number_unsigned() && value.get<uint64_t>() <= uint64_t{kMaxTokenId};
    if (!in_range)
      fail(ErrorCode::kCorruptFile, where, ".vocab: the id of \"", token, "\" is ", value.dump(),
           ", expected 0 … ", kMaxTokenId);
    auto id = value.get<int32_t>();
    auto [entry, added] = ids_.emplace(token, id);
    if (pieces_.size() <= static_cast<size_t>(id)) pieces_.resize(static_cast<size_t>(id) + 1);
    pieces_[static_cast<size_t>(id)] = &entry->first;
  }
}

void BpeModel::read_merges(const Json& json, const std::string& where) {
  const Json* list = find_member(json, "merges");
  if (!list || !list->is_array())
    fail(ErrorCode::kCorruptFile, where, ".merges: expected an array, got ",
         list ? json_kind(*list) : "nothing");
  merges_.resize(std::bit_ceil(std::max<size_t>(list->size() * 2, 16)));
  joints_.resize(size_t{1} << kJointBits);
  uint32_t rank = 0;
  std::string merged;
  for (size_t i = 0; i < list->size(); ++i) {
    const Json& item = (*list)[i];
    std::string_view left, right;
    if (item.is_string()) {
      // "a b"; the first line of GPT-2's merges.txt is sometimes left in.
      std::string_view text = item.get_ref<const std::string&>();
      if (text.starts_with("#version")) continue;
      size_t space = text.find(' ');
      if (space != std::string_view::npos && text.find(' ', space + 1) == std::string_view::npos) {
        left = text.substr(0, space);
        right = text.substr(space + 1);
      }
    } else if (item.is_array() && item.size() == 2 && item[0].is_string() && item[1].is_string()) {
      left = item[0].get_ref<const std::string&>();
      right = item[1].get_ref<const std::string&>();
    }
    if (left.empty() || right.empty())
      fail(ErrorCode::kCorruptFile, where, ".merges[", i,
           "]: expected \"left right\" or [left, right]");
    auto id_in = [&](std::string_view token) {
      std::optional<int32_t> id = find(token);
      if (!id)
        fail(ErrorCode::kCorruptFile, where, ".merges[", i, "]: \"", token,
             "\" is not in the vocabulary");
      return *id;
    };
    uint64_t pair = pair_of(id_in(left), id_in(right));
    note_joint(left, right);
    merged = left;
    merged += right.substr(std::min(word_prefix_.size(), right.size()));
    int32_t result = id_in(merged);
    slot(pair) = {pair, rank++, result};
  }
}

std::optional<int32_t> BpeModel::find(std::string_view token) const {
  auto found = ids_.find(token);
  if (found == ids_.end()) return {};
  return found->second;
}

const std::string* BpeModel::piece(int32_t id) const {
  if (id < 0 || static_cast<size_t>(id) >= pieces_.size()) return nullptr;
  return pieces_[static_cast<size_t>(id)];
}

BpeModel::Merge& BpeModel::slot(uint64_t pair) {
  uint64_t hash = pair * 0x9E3779B97F4A7C15u;
  size_t at = (hash ^ hash >> 32) & (merges_.size() - 1);
  while (merges_[at].pair != pair && merges_[at].pair != kNoPair)
    at = (at + 1) & (merges_.size() - 1);
  return merges_[at];
}

const BpeModel::Merge& BpeModel::merge_of(int32_t left, int32_t right) const {
  return const_cast<BpeModel*>(this)->slot(pair_of(left, right));
}

namespace {

size_t joint_hash(uint32_t left, uint32_t right) {
  return (uint64_t{left} << 32 | right) * 0x9E3779B97F4A7C15u >> (64 - kJointBits);
}

}  // namespace

void BpeModel::note_joint(std::string_view left, std::string_view right) {
  size_t last = left.size(), first = 0;
  uint32_t before = unicode::previous_char(left, last);
  joints_[joint_hash(before, unicode::next_char(right, first))] = true;
}

bool BpeModel::may_join(uint32_t left, uint32_t right) const {
  return joints_[joint_hash(left, right)];
}

size_t BpeModel::independent_front(std::string_view word) const {
  if (joints_.empty()) return word.size();
  size_t at = 0, before = 0;
  uint32_t left = unicode::next_char(word, at);
  while (at < word.size()) {
    size_t next = at;
    uint32_t right = unicode::next_char(word, next);
    // A character that the vocabulary lacks is not spelt as itself in merges, and may be fused
    // with its like.
    if (!may_join(left, right) && find(word.substr(before, at - before)) &&
        find(word.substr(at, next - at)))
      return at;
    before = at;
    left = right;
    at = next;
  }
  return word.size();
}

void BpeModel::encode(std::string_view word, bool byte_level, std::vector<WordPart>& out) const {
  if (word.empty()) return;
  if (ignore_merges_) {
    std::optional<int32_t> whole;
    if (byte_level) {
      std::string visible;
      for (char c : word) unicode::append(visible, unicode::byte_to_char(static_cast<uint8_t>(c)));
      whole = find(visible);
    } else {
      whole = find(word);
    }
    if (whole) {
      out.push_back({*whole, static_cast<uint32_t>(word.size())});
      return;
    }
  }
  size_t first = out.size();
  start_symbols(word, byte_level, out);
  if (out.size() - first <= kShortWord)
    merge_short(out, first);
  else
    merge_long(out, first);
}

void BpeModel::start_symbols(std::string_view word, bool byte_level,
                             std::vector<WordPart>& out) const {
  // An unknown token is held back since the next one may be fused with it. Byte tokens overtake
  // it, as they do in the library that made the files.
  std::optional<WordPart> held;
  const size_t first = out.size();
  uint32_t dropped = 0;  // bytes of characters that become nothing: the next token takes them
  std::string spelled;
  for (size_t at = 0; at < word.size();) {
    size_t begin = at;
    int32_t id = -1;
    if (byte_level) {
      at += 1;
    } else {
      unicode::next_char(word, at);
    }
    auto length = static_cast<uint32_t>(at - begin);
    bool decorated =
        (begin > 0 && !word_prefix_.empty()) || (at == word.size() && !word_suffix_.empty());
    auto byte = static_cast<uint8_t>(word[begin]);
    std::string_view symbol = word.substr(begin, length);
    if (byte_level && !decorated) {
      id = byte_ids_[byte];
    } else if (length == 1 && !decorated && unicode::byte_to_char(byte) == byte) {
      id = byte_ids_[byte];
    } else if (!decorated) {
      id = find(symbol).value_or(-1);
    }
    if (id < 0 && (byte_level || decorated)) {
      spelled = begin > 0 ? word_prefix_ : std::string();
      if (byte_level)
        unicode::append(spelled, unicode::byte_to_char(byte));
      else
        spelled += symbol;
      if (at == word.size()) spelled += word_suffix_;
      symbol = spelled;
      id = find(symbol).value_or(-1);
    }
    if (id >= 0) {
      if (held) out.push_back(*held);
      held.reset();
      out.push_back({id, length + std::exchange(dropped, 0)});
      continue;
    }
    if (byte_fallback_ && std::all_of(symbol.begin(), symbol.end(), [&](char c) {
          return fallback_ids_[static_cast<uint8_t>(c)] >= 0;
        })) {
      uint32_t left = length;
      for (char c : symbol) {
        out.push_back({fallback_ids_[static_cast<uint8_t>(c)],
                       (left > 0 ? 1u : 0u) + std::exchange(dropped, 0)});
        left -= left > 0;
      }
      continue;
    }
    if (!unknown_) {
      dropped += length;
      continue;
    }
    if (held && fuse_unknown_) {
      held->length += length;
    } else {
      if (held) out.push_back(*held);
      held = WordPart{*unknown_, length};
    }
  }
  if (held) out.push_back(*held);
  if (out.size() > first) out.back().length += dropped;
}

void BpeModel::merge_short(std::vector<WordPart>& parts, size_t first) const {
  size_t count = parts.size() - first;
  WordPart* p = parts.data() + first;
  std::array<uint32_t, kShortWord> ranks;
  auto rank_at = [&](size_t i) {
    return i + 1 < count ? merge_of(p[i].id, p[i + 1].id).rank : kNoRank;
  };
  for (size_t i = 0; i < count; ++i) ranks[i] = rank_at(i);
  while (count > 1) {
    auto best = std::min_element(ranks.begin(), ranks.begin() + count);
    if (*best == kNoRank) break;
    auto i = static_cast<size_t>(best - ranks.begin());
    p[i] = {merge_of(p[i].id, p[i + 1].id).result, p[i].length + p[i + 1].length};
    std::copy(p + i + 2, p + count, p + i + 1);
    std::copy(ranks.begin() + i + 2, ranks.begin() + count, ranks.begin() + i + 1);
    --count;
    ranks[i] = rank_at(i);
    if (i > 0) ranks[i - 1] = rank_at(i - 1);
  }
  parts.resize(first + count);
}

void BpeModel::merge_long(std::vector<WordPart>& parts, size_t first) const {
  struct Link {
    uint32_t previous, next;
  };
  struct Candidate {
    uint32_t rank, at;
    bool operator>(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : at > other.at;
    }
  };
  constexpr uint32_t kNone = ~uint32_t{0};
  auto count = static_cast<uint32_t>(parts.size() - first);
  WordPart* p = parts.data() + first;
  std::vector<Link> links(count);
  std::vector<Candidate> storage;
  storage.reserve(count);
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue(std::greater<>(),
                                                                               std::move(storage));
  for (uint32_t i = 0; i < count; ++i)
    links[i] = {i ? i - 1 : kNone, i + 1 < count ? i + 1 : kNone};
  auto offer = [&](uint32_t at) {
    if (at == kNone || links[at].next == kNone) return;
    uint32_t rank = merge_of(p[at].id, p[links[at].next].id).rank;
    if (rank != kNoRank) queue.push({rank, at});
  };
  for (uint32_t i = 0; i < count; ++i) offer(i);
  while (!queue.empty()) {
    Candidate best = queue.top();
    queue.pop();
    uint32_t left = best.at, right = links[left].next;
    if (p[left].id < 0 || right == kNone) continue;
    const Merge& merge = merge_of(p[left].id, p[right].id);
    if (merge.rank != best.rank) continue;  // one of the two has been merged since
    p[left] = {merge.result, p[left].length + p[right].length};
    p[right].id = -1;
    links[left].next = links[right].next;
    if (links[left].next != kNone) links[links[left].next].previous = left;
    offer(left);
    offer(links[left].previous);
  }
  auto gone = [](const WordPart& part) { return part.id < 0; };
  parts.erase(std::remove_if(parts.begin() + first, parts.end(), gone), parts.end());
}

const std::vector<WordPart>& WordCache::encode(std::string_view word) {
  if (byte_level_ || word.size() <= kMaxCachedWord) return encode_piece(word, single_);
  joined_.clear();
  while (!word.empty()) {
    size_t front = model_.independent_front(word);
    const std::vector<WordPart>& parts = encode_piece(word.substr(0, front), single_);
    joined_.insert(joined_.end(), parts.begin(), parts.end());
    word.remove_prefix(front);
  }
  return joined_;
}

const std::vector<WordPart>& WordCache::encode_piece(std::string_view word,
                                                     std::vector<WordPart>& storage) {
  if (word.size() > kMaxCachedWord || known_.size() >= kMaxCachedWords) {
    storage.clear();
    model_.encode(word, byte_level_, storage);
    return storage;
  }
  auto found = known_.find(word);
  if (found == known_.end()) {
    found = known_.emplace(word, std::vector<WordPart>()).first;
    model_.encode(word, byte_level_, found->second);
  }
  return found->second;
}

}  // namespace wick
