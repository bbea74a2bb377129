// Reads profiles. JSON is YAML, whose nodes know their places.
#include <charconv>
#include <cmath>
#include <map>

#include "piper/base/yaml.h"
#include "piper/inspect/cluster.h"

namespace piper {
namespace {

constexpr double kMicro = 1e-6;

class ProfileReader {
  using Node = yaml::Node;

 public:
  Result<MeasuredTimes> read(const std::string& path, const Node& root) {
    out_.path = path;
    const yaml::Entry* const version =
        root.is(Node::Kind::kMap) ? root.find("piper_profile") : nullptr;
    if (!version)
      return fail(SourceSpan{path}, "this is no profile: it has no 'piper_profile'")
          .with_note("help: 'piper-run PLANS --profile FILE' writes one");
    if (version->value.text != "3")
      return fail(version->value.at, "version {} of profiles is not supported",
                  yaml::shown(version->value.text))
          .with_note("help: this program reads version 3; 'piper-run PLANS --profile' writes it");
    PIPER_ASSIGN(out_.target, text_of(root, "target"));
    PIPER_ASSIGN(const Node* device, map_of(root, "device"));
    PIPER_ASSIGN(out_.device, text_of(*device, "name"));
    PIPER_ASSIGN(const double helpers, number_of(*device, "helpers"));
    out_.helper = helpers > 0;
    PIPER_ASSIGN(const Node* notes, value_of(root, "notes", Node::Kind::kList, "a list"));
    for (const Node& note : notes->items) out_.notes.push_back(quote_control(note.text));
    PIPER_ASSIGN(const Node* step, map_of(root, "step"));
    PIPER_ASSIGN(out_.step, number_of(*step, "median_us", kMicro));
    PIPER_ASSIGN(const Node* host, map_of(root, "host"));
    if (host->find("us_per_instruction")) {
      PIPER_ASSIGN(const double each, number_of(*host, "us_per_instruction", kMicro));
      out_.host = each;
    }
    PIPER_TRY(read_entries(root, "programs", "program", out_.programs));
    PIPER_TRY(read_entries(root, "communication", "kind", out_.communication));
    PIPER_TRY(read_entries(root, "local", "kind", out_.local));
    return std::move(out_);
  }

 private:
  static Result<const Node*> value_of(const Node& map, std::string_view key, Node::Kind kind,
                                      std::string_view is) {
    const yaml::Entry* const entry = map.find(key);
    if (!entry) return fail(map.at, "the profile lacks '{}' here", key);
    if (!entry->value.is(kind))
      return fail(entry->value.at, "'{}' must be {}, not {}", key, is, yaml::found(entry->value));
    return &entry->value;
  }
  static Result<const Node*> map_of(const Node& map, std::string_view key) {
    return value_of(map, key, Node::Kind::kMap, "an object");
  }
  static Result<std::string> text_of(const Node& map, std::string_view key) {
    PIPER_ASSIGN(const Node* node, value_of(map, key, Node::Kind::kScalar, "a text"));
    return node->text;
  }
  static Result<double> number_of(const Node& map, std::string_view key, double unit = 1) {
    PIPER_ASSIGN(const Node* node, value_of(map, key, Node::Kind::kScalar, "a number"));
    PIPER_ASSIGN(const double number, number_in(*node, key));
    return number * unit;
  }
  static Result<double> number_in(const Node& node, std::string_view key) {
    double number = 0;
    const char* const end = node.text.data() + node.text.size();
    const auto [at, problem] = std::from_chars(node.text.data(), end, number);
    constexpr double kMost = 1e24;
    if (problem != std::errc() || at != end || !(number >= 0 && number <= kMost))
      return fail(node.at, "'{}' must be a number from 0 to 1e24, not {}", key, yaml::found(node));
    return number;
  }

  // Reads a table, without entries that never ran.
  static Status read_entries(const Node& root, const char* table, const char* name,
                             std::vector<MeasuredTimes::Measured>& to) {
    PIPER_ASSIGN(const Node* list, value_of(root, table, Node::Kind::kList, "a list"));
    std::map<std::string, SourceSpan> known;  // programs
    int64_t passes = 0;                       // of all of them
    for (const Node& node : list->items) {
      if (!node.is(Node::Kind::kMap))
        return fail(node.at, "an entry of '{}' must be an object, not {}", table,
                    yaml::found(node));
      PIPER_ASSIGN(const double count, number_of(node, "count"));
      if (count == 0) continue;
      MeasuredTimes::Measured& one = to.emplace_back();
      one.at = node.at;
      PIPER_ASSIGN(one.name, text_of(node, name));
      PIPER_ASSIGN(one.median, number_of(node, "median_us", kMicro));
      PIPER_ASSIGN(one.least, number_of(node, "min_us", kMicro));
      if (one.least > one.median)
        return fail(node.find("min_us")->value.at, "'min_us' is more than 'median_us'");
      if (std::string_view(name) == "program") {
        PIPER_TRY(check_program(node, one.name, known));
        PIPER_TRY(read_work(node, one, passes));
      } else {
        PIPER_TRY(read_transfer(node, std::string_view(table) == "communication", one));
      }
    }
    return ok_status();
  }
  // Checks a program beside those before it in the file, which are `known`, and adds it.
  static Status check_program(const Node& node, const std::string& name,
                              std::map<std::string, SourceSpan>& known) {
    constexpr size_t kDigits = 32;
    const SourceSpan& at = node.find("program")->value.at;
    if (name.size() != kDigits || name.find_first_not_of("0123456789abcdef") != name.npos)
      return fail(at, "'program' must be a digest of {} hexadecimal digits, not {}", kDigits,
                  yaml::shown(name));
    const auto [other, is_new] = known.emplace(name, node.at);
    if (!is_new)
      return fail(at, "the program {} is there twice", name)
          .with_note(fmt::format("the other one is at line {}", other->second.line));
    return ok_status();
  }
  // `passes` counts those of the programs before it, too.
  static Status read_work(const Node& node, MeasuredTimes::Measured& one, int64_t& passes) {
    PIPER_ASSIGN(const Node* list, value_of(node, "work", Node::Kind::kList, "a list"));
    constexpr int64_t kMostPasses = 1 << 22;
    for (const Node& text : list->items) {
      const auto pass = parse_pass(text.text);
      if (!pass || pass->first > kMostPasses - passes)
        return fail(text.at, "{} is not the work of a pass", yaml::found(text))
            .with_note("help: formats/profile.md says how 'work' is written");
      passes += pass->first;
      one.work.insert(one.work.end(), static_cast<size_t>(pass->first), pass->second);
    }
    return ok_status();
  }
  static Status read_ranks(const Node& node, MeasuredTimes::Measured& one) {
    constexpr double kMost = 1 << 24;
    PIPER_ASSIGN(const Node* list, value_of(node, "ranks", Node::Kind::kList, "a list"));
    for (const Node& item : list->items) {
      PIPER_ASSIGN(const double rank, number_in(item, "ranks"));
      const double least = one.ranks.empty() ? 0 : static_cast<double>(one.ranks.back()) + 1;
      if (rank < least || rank > kMost || rank != std::floor(rank))
        return fail(item.at, "'ranks' must be whole numbers, each more than the one before, not {}",
                    yaml::found(item));
      one.ranks.push_back(static_cast<int64_t>(rank));
    }
    if (one.ranks.size() < 2) return fail(list->at, "'ranks' must be two or more");
    return ok_status();
  }
  static Status read_transfer(const Node& node, bool has_ranks, MeasuredTimes::Measured& one) {
    PIPER_ASSIGN(one.bytes, number_of(node, "bytes"));
    if (!find_instruction_by_word(one.name) && one.name != "prepared")
      return fail(node.find("kind")->value.at, "there is no kind of instruction {}",
                  yaml::shown(one.name));
    if (has_ranks) {
      PIPER_TRY(read_ranks(node, one));
      PIPER_ASSIGN(one.where, text_of(node, "link"));
    } else {
      PIPER_ASSIGN(one.where, text_of(node, "where"));
    }
    if (const yaml::Entry* const sum = node.find("sum")) one.fast = sum->value.text == "fast";
    return ok_status();
  }

  MeasuredTimes out_;
};

}  // namespace

Result<MeasuredTimes> read_profile(const std::string& path) {
  PIPER_ASSIGN(const std::string text, read_text_file(path, yaml::kMaxBytes));
  Result<yaml::Node> root = yaml::parse_yaml(path, text);
  if (!root)
    return std::move(root).error().with_note(
        "help: a profile that is damaged or cut off is of no use; 'piper-run PLANS --profile FILE' "
        "writes another one");
  return ProfileReader().read(path, *root);
}

}  // namespace piper
