// Reads the file of a mixture: sources, then phases of weights.
#include "mix_file.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <numeric>

#include "piper/base/maps.h"

namespace piper {
namespace {

using yaml::Node;

Status check_keys(const Node& map, const std::vector<std::string>& known) {
  for (const yaml::Entry& entry : map.entries)
    if (std::find(known.begin(), known.end(), entry.key.text) == known.end())
      return fail(entry.key.at, "unknown key {}{}; there are {}", yaml::shown(entry.key.text),
                  did_you_mean(entry.key.text, known), list_with_and(known));
  return ok_status();
}

Result<std::string> read_text(const Node& node, std::string_view what) {
  PIPER_TRY(expect(node, Node::Kind::kScalar, what, "a text"));
  if (node.text.empty()) return fail(node.at, "{} must not be empty", what);
  return node.text;
}

Result<int64_t> read_whole(const Node& node, std::string_view what) {
  PIPER_TRY(expect(node, Node::Kind::kScalar, what, "a whole number from 0 on"));
  int64_t value = -1;
  const char* const end = node.text.data() + node.text.size();
  const auto [at, error] = std::from_chars(node.text.data(), end, value);
  if (error != std::errc() || at != end || value < 0)
    return fail(node.at, "{} must be a whole number from 0 on, not {}", what, yaml::found(node));
  return value;
}

// "a text" or "[a, list]", relative to the folder of the file.
Result<std::vector<std::string>> read_files(const Node& node, std::string_view what,
                                            const std::filesystem::path& folder) {
  std::vector<std::string> files;
  const auto add = [&](const Node& item) -> Status {
    PIPER_ASSIGN(const std::string text, read_text(item, what));
    files.push_back((folder / text).string());
    return ok_status();
  };
  if (!node.is(Node::Kind::kList)) {
    PIPER_TRY(add(node));
    return files;
  }
  for (const Node& item : node.items) PIPER_TRY(add(item));
  if (files.empty()) return fail(node.at, "{} must name a file", what);
  return files;
}

// ---- Weights ------------------------------------------------------------------------------------

// Holds a decimal number as it is written: 0.25 has the digits 25 and 2 places.
struct Decimal {
  int64_t digits = 0;
  int places = 0;
  SourceSpan at;
};

Result<Decimal> read_weight(const Node& node) {
  PIPER_TRY(expect(node, Node::Kind::kScalar, "a weight", "a number"));
  Decimal decimal{0, 0, node.at};
  size_t count = 0;
  bool behind_point = false, legal = true;
  for (const char c : node.text) {
    if (c == '.' && !behind_point) {
      behind_point = true;
      continue;
    }
    legal = legal && c >= '0' && c <= '9' && ++count <= 12;
    if (!legal) break;
    decimal.digits = decimal.digits * 10 + (c - '0');
    if (behind_point) ++decimal.places;
  }
  if (!legal || count == 0)
    return fail(node.at, "a weight must be a decimal number from 0 on of at most 12 digits, not {}",
                yaml::found(node));
  return decimal;
}

// Returns how many units a weight is, of which 10^places are 1.
Result<int64_t> in_units(const Decimal& weight, int places) {
  int64_t value = weight.digits;
  for (int i = weight.places; i < places; ++i)
    if (__builtin_mul_overflow(value, int64_t{10}, &value))
      return fail(weight.at, "a weight beside others has too many digits");
  return value;
}

// Returns the smallest whole numbers in the same ratios.
Result<std::vector<int64_t>> make_whole(const SourceSpan& at, const std::vector<Decimal>& weights) {
  int places = 0;
  for (const Decimal& weight : weights) places = std::max(places, weight.places);
  std::vector<int64_t> whole;
  int64_t divisor = 0, sum = 0;
  for (const Decimal& weight : weights) {
    PIPER_ASSIGN(const int64_t value, in_units(weight, places));
    whole.push_back(value);
    divisor = std::gcd(divisor, value);
  }
  if (divisor == 0) return fail(at, "all weights are 0");
  for (int64_t& value : whole) {
    value /= divisor;
    if (value > kMostParts || (sum += value) > kMostParts)
      return fail(at, "the weights are parts of more than {} in all", kMostParts)
          .with_note("help: write fewer digits, such as 0.0123 for 0.01234567");
  }
  return whole;
}

// ---- Sources and phases -------------------------------------------------------------------------

class MixReader {
 public:
  explicit MixReader(const std::string& path)
      : folder_(std::filesystem::path(path).parent_path()) {}

  Result<TokenSpec> read(const Node& root) {
    PIPER_TRY(expect(root, Node::Kind::kMap, "the file of a mixture", "a map with 'sources'"));
    PIPER_TRY(check_keys(root, {"sources", "phases"}));
    const yaml::Entry* const sources = root.find("sources");
    if (!sources) return fail(root.at, "the file of a mixture needs 'sources'");
    PIPER_TRY(read_sources(sources->value));
    if (const yaml::Entry* const phases = root.find("phases"))
      PIPER_TRY(read_phases(phases->value));
    return std::move(spec_);
  }

 private:
  Status read_sources(const Node& list) {
    PIPER_TRY(expect(list, Node::Kind::kList, "'sources'", "a list"));
    if (list.items.empty() || list.items.size() > kMostSources)
      return fail(list.at, "there are {} sources; from 1 to {} can be mixed", list.items.size(),
                  kMostSources);
    for (const Node& item : list.items) PIPER_TRY(read_source(item, list.items.size() > 1));
    PIPER_ASSIGN(auto weights, make_whole(list.at, weights_));
    spec_.phases.push_back({0, std::move(weights)});
    return ok_status();
  }

  Status read_source(const Node& map, bool needs_weight) {
    PIPER_TRY(expect(map, Node::Kind::kMap, "a source", "a map"));
    PIPER_TRY(check_keys(map, {"name", "files", "weight", "type", "separator", "mask", "pack"}));
    for (const char* const key : {"name", "files", "weight"})
      if (!map.find(key) && (needs_weight || std::string_view(key) != "weight"))
        return fail(map.at, "a source needs '{}'", key);
    TokenSourceSpec source;
    PIPER_ASSIGN(source.name, read_text(map.find("name")->value, "'name'"));
    source.at = map.find("name")->value.at;
    if (std::find(names_.begin(), names_.end(), source.name) != names_.end())
      return fail(source.at, "two sources are named {}", yaml::shown(source.name));
    names_.push_back(source.name);
    TokenFiles files;
    PIPER_TRY(read_form(map, files));
    PIPER_ASSIGN(const auto patterns, read_files(map.find("files")->value, "'files'", folder_));
    for (const std::string& pattern : patterns)
      source.files.push_back({pattern, files.type, files.separator, files.pack});
    if (const yaml::Entry* const mask = map.find("mask")) {
      PIPER_ASSIGN(source.masks, read_files(mask->value, "'mask'", folder_));
    }
    weights_.push_back({1, 0, map.at});
    if (const yaml::Entry* const weight = map.find("weight")) {
      PIPER_ASSIGN(weights_.back(), read_weight(weight->value));
    }
    spec_.sources.push_back(std::move(source));
    return ok_status();
  }

  static Status read_form(const Node& map, TokenFiles& files) {
    if (const yaml::Entry* const type = map.find("type")) {
      PIPER_ASSIGN(const std::string text, read_text(type->value, "'type'"));
      files.type = parse_token_type(text);
      if (!files.type)
        return fail(type->value.at,
                    "{} is no type of tokens: u8, i8, u16, i16, u32, i32 and i64 are",
                    yaml::shown(text));
    }
    if (const yaml::Entry* const separator = map.find("separator")) {
      PIPER_ASSIGN(files.separator, read_whole(separator->value, "'separator'"));
    }
    if (const yaml::Entry* const pack = map.find("pack")) {
      const std::string& text = pack->value.text;
      if (pack->value.kind != Node::Kind::kScalar || (text != "true" && text != "false"))
        return fail(pack->value.at, "'pack' is true or false, not {}", yaml::found(pack->value));
      files.pack = text == "true";
    }
    return ok_status();
  }

  Status read_phases(const Node& list) {
    PIPER_TRY(expect(list, Node::Kind::kList, "'phases'", "a list"));
    if (list.items.size() > kMostPhases)
      return fail(list.at, "there are {} phases; at most {} can be told apart", list.items.size(),
                  kMostPhases);
    for (const Node& item : list.items) PIPER_TRY(read_phase(item));
    return ok_status();
  }

  Status read_phase(const Node& map) {
    PIPER_TRY(expect(map, Node::Kind::kMap, "a phase", "a map"));
    PIPER_TRY(check_keys(map, {"from", "weights"}));
    const yaml::Entry *const from = map.find("from"), *const weights = map.find("weights");
    if (!from || !weights) return fail(map.at, "a phase needs '{}'", from ? "weights" : "from");
    MixPhase phase;
    PIPER_ASSIGN(phase.from, read_whole(from->value, "'from'"));
    if (phase.from <= spec_.phases.back().from)
      return fail(from->value.at,
                  "a phase must begin after sample {}, where the phase before it begins",
                  spec_.phases.back().from);
    PIPER_TRY(expect(weights->value, Node::Kind::kMap, "'weights'", "a map of sources"));
    PIPER_TRY(check_keys(weights->value, names_));
    std::vector<Decimal> given;
    for (const std::string& name : names_) {
      const yaml::Entry* const weight = weights->value.find(name);
      if (!weight)
        return fail(weights->value.at, "the phase gives no weight for source {}", yaml::shown(name))
            .with_note("help: 0 leaves a source out");
      PIPER_ASSIGN(Decimal value, read_weight(weight->value));
      given.push_back(std::move(value));
    }
    PIPER_ASSIGN(phase.weights, make_whole(weights->value.at, given));
    spec_.phases.push_back(std::move(phase));
    return ok_status();
  }

  std::filesystem::path folder_;
  std::vector<std::string> names_;
  std::vector<Decimal> weights_;
  TokenSpec spec_;
};

}  // namespace

Result<TokenSpec> read_mix(const std::string& path) {
  constexpr int64_t kMostBytes = int64_t{1} << 20;
  PIPER_ASSIGN(const std::string text, read_text_file(path, kMostBytes));
  PIPER_ASSIGN(const Node root, yaml::parse_yaml(path, text));
  return MixReader(path).read(root);
}

}  // namespace piper
