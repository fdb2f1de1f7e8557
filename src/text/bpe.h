// SPDX-License-Identifier: Apache-2.0
// The BPE model of a tokenizer.json: vocabulary, merges, and what to do with unknown characters.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "io/json.h"

namespace wick {

// Tables are indexed by id: an id beyond this is a damaged file, not a vocabulary.
constexpr int64_t kMaxTokenId = (int64_t{1} << 22) - 1;

struct StringHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};
template <typename T>
using StringMap = std::unordered_map<std::string, T, StringHash, std::equal_to<>>;

// A token of a word and how many bytes of the word it took.
struct WordPart {
  int32_t id;
  uint32_t length;
};

class BpeModel {
 public:
  // Throws: kCorruptFile, kUnsupported naming the key.
  BpeModel(const Json& json, const std::string& where);
  BpeModel(BpeModel&&) = default;
  BpeModel& operator=(BpeModel&&) = default;

  std::optional<int32_t> find(std::string_view token) const;
  const std::string* piece(int32_t id) const;  // nullptr: no such id
  int64_t size() const { return static_cast<int64_t>(ids_.size()); }
  int64_t id_limit() const { return static_cast<int64_t>(pieces_.size()); }

  // Appends the tokens of one word. With `byte_level` each byte stands for its visible character.
  // A character that the vocabulary lacks becomes byte tokens, or the unknown token, or nothing:
  // then its bytes count with the token behind it, at the end of a word with the one before.
  // Time is linear in the word's length, but for a logarithm.
  void encode(std::string_view word, bool byte_level, std::vector<WordPart>& out) const;

  // The length of a front of `word` (not byte-level) that no merge can join to what follows: the
  // two encoded apart give what the whole gives. A sentence without cuts falls into words so.
  size_t independent_front(std::string_view word) const;

 private:
  struct Merge {
    uint64_t pair = kNoPair;
    uint32_t rank = kNoRank;
    int32_t result = 0;
  };
  static constexpr uint64_t kNoPair = ~uint64_t{0};
  static constexpr uint32_t kNoRank = ~uint32_t{0};
  static uint64_t pair_of(int32_t left, int32_t right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  }

  void read_vocabulary(const Json& json, const std::string& where);
  void read_merges(const Json& json, const std::string& where);
  void note_joint(std::string_view left, std::string_view right);
  bool may_join(uint32_t left, uint32_t right) const;
  Merge& slot(uint64_t pair);
  const Merge& merge_of(int32_t left, int32_t right) const;

  // The symbols that merging starts from: one per character, unknown ones replaced.
  void start_symbols(std::string_view word, bool byte_level, std::vector<WordPart>& out) const;
  void merge_short(std::vector<WordPart>& parts, size_t first) const;
  void merge_long(std::vector<WordPart>& parts, size_t first) const;

  StringMap<int32_t> ids_;
  std::vector<const std::string*> pieces_;   // by id: keys of ids_, whose nodes never move
  std::vector<Merge> merges_;                // open addressing, a power of two
  std::array<int32_t, 256> byte_ids_{};      // of the visible character of a byte; -1: none
  std::array<int32_t, 256> fallback_ids_{};  // of <0x00> … <0xFF>; -1: none
  // One bit for each hash of two characters between which some merge joins. A wrong hit only
  // forgoes a cut. Empty where cuts could change something else.
  std::vector<bool> joints_;
  std::optional<int32_t> unknown_;
  std::string word_prefix_, word_suffix_;
  bool fuse_unknown_ = false, byte_fallback_ = false, ignore_merges_ = false;
};

// Remembers words within one call: most words of a text are repeats.
class WordCache {
 public:
  WordCache(const BpeModel& model, bool byte_level) : model_(model), byte_level_(byte_level) {}
  // Valid until the next call.
  const std::vector<WordPart>& encode(std::string_view word);

 private:
  const std::vector<WordPart>& encode_piece(std::string_view word, std::vector<WordPart>& storage);

  const BpeModel& model_;
  bool byte_level_;
  StringMap<std::vector<WordPart>> known_;
  std::vector<WordPart> single_, joined_;
};

}  // namespace wick
