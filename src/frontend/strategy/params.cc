// Resolves a strategy's params, -D definitions and includes.
#include <algorithm>
#include <charconv>

#include "errors.h"
#include "expr_tree.h"
#include "sections.h"

namespace piper {
namespace {

constexpr size_t kMaxParams = 1000;

struct Value {
  bool is_text = false;
  bool is_real = false;  // a text that is a number: 3e-4
  int64_t integer = 0;
  std::string text;
};

// Resolves params, which refer to each other by name, in any order; a definition replaces what the
// file says.
class Resolver {
 public:
  Resolver(std::vector<const yaml::Entry*> entries, const std::vector<Definition>& defines)
      : entries_(std::move(entries)),
        values_(entries_.size()),
        state_(entries_.size(), State::kFresh) {
    for (const yaml::Entry* entry : entries_) names_.push_back(entry->key.text);
    for (const Definition& define : defines) defines_.push_back(&define);
  }

  void resolve_all(ErrorList& errors) {
    for (const Definition* define : defines_)
      if (std::find(names_.begin(), names_.end(), define->name) == names_.end())
        errors.add(unknown_definition(*define));
    for (size_t i = 0; i < entries_.size(); ++i) errors.add(resolve(i, entries_[i]->key.at));
  }

  Scope scope() const { return done_scope(); }

  // Params that it inserts are resolved first.
  Result<std::string> read_inserting(const yaml::Node& node) {
    PIPER_TRY(resolve_inserted(node));
    return insert_params(node, done_scope());
  }

 private:
  enum class State { kFresh, kOpen, kDone, kFailed };

  static bool is_real(std::string_view text) {
    double value = 0;
    const char* end = text.data() + text.size();
    const bool plain = text.find_first_not_of("+-.0123456789eE") == std::string_view::npos;
    return plain && std::from_chars(text.data(), end, value).ptr == end && !text.empty();
  }

  static SourceSpan define_at(const Definition& define) {
    return {fmt::format("-D {}={}", define.name, define.value)};
  }

  Error unknown_definition(const Definition& define) const {
    Error error = fail(define_at(define), "no param is called '{}'{}", define.name,
                       did_you_mean(define.name, names_));
    if (names_.empty()) return std::move(error).with_note("the strategy has no params");
    return std::move(error).with_note(fmt::format("its params are {}", join(names_, ", ")));
  }

  const Definition* definition(const std::string& name) const {
    auto it = std::find_if(defines_.rbegin(), defines_.rend(),
                           [&](const Definition* d) { return d->name == name; });
    return it == defines_.rend() ? nullptr : *it;
  }

  Status resolve(size_t index, const SourceSpan& used_at) {
    if (state_[index] == State::kDone) return ok_status();
    if (state_[index] == State::kFailed) return consequence();
    if (state_[index] == State::kOpen) {
      return fail(used_at, "the param '{}' refers to itself", names_[index]);
    }
    state_[index] = State::kOpen;
    Status made = define(index);
    state_[index] = made ? State::kDone : State::kFailed;
    return made;
  }

  Status define(size_t index) {
    PIPER_ASSIGN(values_[index], read(entries_[index]->value, entries_[index]->key));
    // Definitions come before anything reads the param, so that what derives from it follows its
    // definition.
    return apply_definitions(index);
  }

  Status check_definition(size_t index, const Definition& define, bool is_number) {
    const Value& value = values_[index];
    if (value.is_real && !is_real(define.value))
      return fail(define_at(define), "the param '{}' is a number, but {} is not", names_[index],
                  yaml::shown(define.value))
          .with_note(fmt::format("it is given at {}", yaml::place(entries_[index]->value.at)));
    if (!value.is_real && value.is_text != !is_number) {
      return fail(define_at(define), "the param '{}' is {}, but {} is {}", names_[index],
                  value.is_text ? "a text" : "an integer", yaml::shown(define.value),
                  is_number ? "an integer" : "not")
          .with_note(fmt::format("it is given at {}", yaml::place(entries_[index]->value.at)));
    }
    return ok_status();
  }

  Status apply_definitions(size_t index) {
    const Definition* define = definition(names_[index]);
    if (define == nullptr) return ok_status();
    Value& value = values_[index];
    int64_t number = 0;
    const char* end = define->value.data() + define->value.size();
    const auto parsed = std::from_chars(define->value.data(), end, number);
    const bool is_number = parsed.ptr == end && parsed.ec == std::errc{};
    PIPER_TRY(check_definition(index, *define, is_number));
    value.integer = number;
    value.text = define->value;
    return ok_status();
  }

  // Returns the params that the expression names, resolved; false when it names something else.
  Result<bool> resolve_names(const expr::Tree& tree, bool* all_integers) {
    *all_integers = true;
    bool all_known = true;
    for (const expr::Node& part : tree.nodes) {
      if (part.op != expr::Op::kName) continue;
      auto it = std::find(names_.begin(), names_.end(), tree.name(part));
      if (it == names_.end()) {
        all_known = false;
        continue;
      }
      const auto index = static_cast<size_t>(it - names_.begin());
      PIPER_TRY(resolve(index, tree.span(part.begin, part.end)));
      *all_integers = *all_integers && !values_[index].is_text;
    }
    return all_known;
  }

  Scope done_scope() const {
    Scope scope;
    for (size_t i = 0; i < names_.size(); ++i) {
      if (state_[i] != State::kDone) {
        scope.failed.push_back(names_[i]);
      } else if (values_[i].is_text) {
        scope.texts.push_back(text_param(i));
      } else {
        scope.integers.emplace_back(names_[i], values_[i].integer);
      }
    }
    return scope;
  }

  Scope::Text text_param(size_t index) const {
    const Value& value = values_[index];
    const yaml::Node& node = entries_[index]->value;
    Scope::Text out{names_[index], value.text, value.is_real, node.at, node.inside};
    if (const Definition* define = definition(names_[index])) out.at = define_at(*define);
    if (value.text != node.text) {
      out.inside = out.at;
      out.inside.length = -1;
    }
    return out;
  }

  Result<Value> text_value(const yaml::Node& node) {
    PIPER_ASSIGN(std::string text, read_inserting(node));
    return Value{true, false, 0, std::move(text)};
  }

  // Resolves the params that a text inserts with $name; insert_params reports names that are no
  // params.
  Status resolve_inserted(const yaml::Node& node) {
    for (const std::string_view name : inserted_names(node.text)) {
      auto it = std::find(names_.begin(), names_.end(), name);
      if (it == names_.end()) continue;
      const auto offset = static_cast<size_t>(name.data() - node.text.data());
      PIPER_TRY(
          resolve(static_cast<size_t>(it - names_.begin()), span_in(node, offset, name.size())));
    }
    return ok_status();
  }

  // Returns an integer where the scalar is an expression over integer params; else a text. In plain
  // style only a lone word is a text; in quotes also what has other names. Several lines are a
  // text.
  Result<Value> read(const yaml::Node& node, const yaml::Node& key) {
    if (node.is(yaml::Node::Kind::kNull))
      return fail(key.at, "the param '{}' has no value", key.text);
    if (!node.is(yaml::Node::Kind::kScalar)) return wrong_type(node, "an integer or a text");
    if (node.text == "true" || node.text == "false") {
      return wrong_type(node, "an integer or a text").with_note("help: write 0 or 1");
    }
    if (node.style == yaml::Node::Style::kBlock || is_byte_count(node.text))
      return text_value(node);
    const auto tree = expr::parse(node.text, node.inside);
    const bool quoted = node.style == yaml::Node::Style::kQuoted;
    const bool real = is_real(node.text) && node.text.find_first_of(".eE") != std::string::npos;
    if (!tree && real) return Value{true, true, 0, node.text};
    const bool lone_word = expr::is_identifier(node.text);
    if (!tree) {
      const char first = node.text.empty() ? '\0' : node.text[0];
      const bool digits = node.text.find_first_not_of("0123456789") == std::string::npos;
      const bool word = !digits && expr::is_identifier("_" + node.text);  // 2d
      const bool numeric = !quoted && !word && ((first >= '0' && first <= '9') || first == '(');
      if (numeric) return tree.error();
      return text_value(node);
    }
    if (lone_word) return text_value(node);
    bool all_integers = false;
    PIPER_ASSIGN(const bool all_known, resolve_names(*tree, &all_integers));
    const bool inserts_text = all_known && !all_integers && node.text.starts_with('$');
    if (inserts_text || (quoted && !(all_known && all_integers))) return text_value(node);
    auto number = read_integer(node, done_scope());
    if (number) return Value{false, false, *number, {}};
    if (all_known) return std::move(number).error();
    return std::move(number).error().with_note("help: if a text is meant, put it in quotes");
  }

  std::vector<const yaml::Entry*> entries_;
  std::vector<std::string> names_;
  std::vector<Value> values_;
  std::vector<State> state_;
  std::vector<const Definition*> defines_;
};

// Notes that what a param's value names is used, also where another value replaces it.
void note_names(const yaml::Node& value, const Scope& scope) {
  for (const std::string_view name : inserted_names(value.text)) scope.used.emplace(name);
  const auto tree = expr::parse(value.text, value.inside);
  if (!tree || expr::is_identifier(value.text)) return;  // a lone word is a text
  for (const expr::Node& part : tree->nodes)
    if (part.op == expr::Op::kName) scope.used.emplace(tree->name(part));
}

}  // namespace

void note_words(const yaml::Node& value, const Scope& scope) {
  for (const yaml::Node& item : value.items) note_words(item, scope);
  for (const yaml::Entry& entry : value.entries) note_words(entry.value, scope);
  const auto is_word = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '_';
  };
  const std::string_view text = value.text;
  for (size_t begin = 0, end = 0; begin < text.size(); begin = end + 1) {
    end = begin;
    while (end < text.size() && is_word(text[end])) ++end;
    if (end > begin) scope.used.emplace(text.substr(begin, end - begin));
  }
}

Scope read_params(const std::vector<StrategyFile>& files, const Sections& sections,
                  const std::vector<Definition>& defines, ErrorList& errors) {
  if (sections.params.size() > kMaxParams) {
    errors.add(
        fail(sections.params[kMaxParams]->key.at, "a strategy has at most {} params", kMaxParams));
    return {};
  }
  Resolver resolver(sections.params, defines);
  resolver.resolve_all(errors);
  Scope scope = resolver.scope();
  for (const StrategyFile& file : files)
    if (file.from.line > 0) scope.included_at[file.path] = file.from;
  for (const auto* entries : {&sections.params, &sections.overridden_params})
    for (const yaml::Entry* entry : *entries) note_names(entry->value, scope);
  for (const yaml::Node* value : sections.overridden) note_words(*value, scope);
  return scope;
}

Result<std::string> read_path(const yaml::Node& path, std::vector<const yaml::Entry*> params,
                              const std::vector<Definition>& defines) {
  Result<std::string> text = Resolver(std::move(params), defines).read_inserting(path);
  if (text) return text;
  return std::move(text).error().with_note(
      "help: a path inserts params of its file and of those that include it");
}

void check_used(const Sections& sections, const Scope& scope,
                const std::vector<Definition>& defines, ErrorList& errors) {
  std::vector<std::string> used;
  for (const yaml::Entry* entry : sections.params)
    if (scope.used.contains(entry->key.text)) used.push_back(entry->key.text);
  for (const yaml::Entry* entry : sections.params) {
    const std::string& name = entry->key.text;
    if (scope.used.contains(name)) continue;
    Error error =
        fail(entry->key.at, "nothing uses the param '{}'{}", name, did_you_mean(name, used));
    for (const Definition& define : defines)
      if (define.name == name)
        error.notes.push_back(fmt::format("-D {}={} changes nothing", name, define.value));
    if (!nearest(name, used))
      error.notes.push_back(
          fmt::format("help: write '${}' where it is meant, or leave it out", name));
    errors.add(std::move(error));
  }
}

}  // namespace piper
