// Which entries of lists count: `when`, and the names of directives.
#include <algorithm>

#include "sections.h"

namespace piper {
namespace {

using Items = std::vector<Sections::Item>;

constexpr size_t kMaxNames = 1000;

// Keys and names of an entry that does not count are looked at all the same.
Status put_aside(const yaml::Node& entry, const Scope& scope, std::string_view object) {
  note_words(entry, scope);
  return fields::check(entry, entry.at, object);
}

// Takes `when` out of an entry: what it says.
Result<bool> take_when(yaml::Node& entry, const Scope& scope) {
  const auto when = std::find_if(entry.entries.begin(), entry.entries.end(),
                                 [](const yaml::Entry& e) { return e.key.text == "when"; });
  if (when == entry.entries.end()) return true;
  const yaml::Node value = std::move(when->value);
  entry.entries.erase(when);
  return read_bool(value, scope, {});
}

constexpr const char* kWhen = "its 'when' is 0";

// Holds the entries of `section`, which hold those of `object`.
struct Entries {
  std::string_view object, section;
  const Scope& scope;
  std::vector<LeftOut>& left_out;
  ErrorList& errors;

  // Returns whether the entry counts. One with a wrong `when` does, so that the rest of it is read.
  bool counts(yaml::Node& entry) const {
    const Result<bool> when = take_when(entry, scope);
    if (!when) errors.add(when.error());
    if (!when || *when) return true;
    errors.add(put_aside(entry, scope, object));
    left_out.push_back({entry.at, std::string(section), kWhen});
    return false;
  }
  void filter(std::vector<yaml::Node>& list) const {
    std::erase_if(list, [&](yaml::Node& entry) { return !counts(entry); });
  }
  void filter(Items& items) const {
    std::erase_if(items, [&](Sections::Item& item) { return !counts(item.node); });
  }
};

yaml::Node* value_of(yaml::Node& map, std::string_view key) {
  for (yaml::Entry& entry : map.entries)
    if (entry.key.text == key) return &entry.value;
  return nullptr;
}

// ---- Directives by name -------------------------------------------------------------------------

class Directives {
 public:
  Directives(const std::vector<StrategyFile>& files, Choice& choice, const Scope& scope,
             std::vector<LeftOut>& left_out, ErrorList& errors)
      : files_(files), choice_(choice), scope_(scope), left_out_(left_out), errors_(errors) {}

  void choose_all(Items& items) {
    for (Sections::Item& item : items) errors_.add(add(item));
    for (const Named& named : named_) choose(named);
    Items out;
    for (Sections::Item* item : slots_)
      if (item) out.push_back(std::move(*item));
    items = std::move(out);
  }

 private:
  struct Claim {
    Given given;
    Sections::Item* item = nullptr;  // null: that it is dropped
    bool counts = true;
  };
  struct Named {
    std::string name;
    size_t slot = 0;  // where the first of them stands
    std::vector<Claim> claims;
  };

  Named* find(std::string_view name) {
    const auto found = std::find_if(named_.begin(), named_.end(),
                                    [&](const Named& named) { return named.name == name; });
    return found == named_.end() ? nullptr : &*found;
  }

  Status add(Sections::Item& item) {
    const Result<bool> when = take_when(item.node, scope_);
    const bool counts = !when || *when;
    if (!when) errors_.add(when.error());
    if (const yaml::Node* drop = value_of(item.node, "drop")) return add_drops(item, *drop, counts);
    const yaml::Node* name = value_of(item.node, "name");
    if (name) return add_named(item, *name, counts);
    if (!counts) return leave_out(item, kWhen);
    slots_.push_back(&item);
    return ok_status();
  }

  Status add_named(Sections::Item& item, const yaml::Node& node, bool counts) {
    PIPER_ASSIGN(const std::string name, read_name(node, scope_));
    PIPER_TRY(fields::read(item.node, item.node.at, "directive"));
    if (!find(name)) {
      if (named_.size() == kMaxNames)
        return fail(node.at, "a strategy has at most {} names of directives", kMaxNames);
      named_.push_back({name, slots_.size(), {}});
      slots_.push_back(nullptr);
    }
    for (const Claim& below : find(name)->claims) PIPER_TRY(check_kind(item, below, name));
    return add_claim(name, {{item.file, &node, &item.node}, &item, counts});
  }

  Status add_drops(const Sections::Item& item, const yaml::Node& drop, bool counts) {
    PIPER_TRY(fields::read(item.node, item.node.at, "directive"));
    if (const yaml::Entry* name = item.node.find("name"))
      return fail(name->key.at, "'drop' has no name: it is no directive");
    const bool is_list = drop.is(yaml::Node::Kind::kList);
    for (const yaml::Node& node : is_list ? std::span(drop.items) : std::span(&drop, 1)) {
      PIPER_ASSIGN(const std::string name, read_name(node, scope_));
      PIPER_TRY(check_known(name, node, item.file));
      PIPER_TRY(add_claim(name, {{item.file, &node, nullptr}, nullptr, counts}));
    }
    return ok_status();
  }

  // Adds an entry, of which one counts for each file.
  Status add_claim(std::string_view name, const Claim& claim) {
    std::vector<Claim>& claims = find(name)->claims;
    for (const Claim& other : claims)
      if (other.given.file == claim.given.file && other.counts && claim.counts)
        return fail(claim.given.key->at, "the directive '{}' is given twice", name)
            .with_note(fmt::format("first at {}", yaml::place(other.given.key->at)));
    claims.push_back(claim);
    return ok_status();
  }

  static const yaml::Entry& kind_of(const Sections::Item& item) {
    const auto& entries = item.node.entries;
    return *std::find_if(entries.begin(), entries.end(),
                         [](const yaml::Entry& e) { return e.key.text != "name"; });
  }

  // A directive is overridden by one of its kind.
  Status check_kind(const Sections::Item& item, const Claim& below, std::string_view name) const {
    if (!below.item || !files_[item.file].below.contains(below.item->file)) return ok_status();
    const yaml::Node &now = kind_of(item).key, &then = kind_of(*below.item).key;
    if (now.text == then.text) return ok_status();
    return fail(now.at, "'{}' is '{}' here and '{}' in the file that is included", name, now.text,
                then.text)
        .with_note(fmt::format("first at {}", yaml::place(then.at)))
        .with_note(fmt::format("help: 'drop: {}', and another name", name));
  }

  // Names are dropped of files that are included.
  Status check_known(const std::string& name, const yaml::Node& node, size_t file) const {
    const auto is_below = [&](const Claim& claim) {
      return claim.item && files_[file].below.contains(claim.item->file);
    };
    std::vector<std::string> known;
    for (const Named& named : named_)
      if (std::any_of(named.claims.begin(), named.claims.end(), is_below))
        known.push_back(named.name);
    if (std::find(known.begin(), known.end(), name) != known.end()) return ok_status();
    Error error = fail(node.at, "no directive of an included file is called {}{}",
                       yaml::shown(name), did_you_mean(name, known));
    if (known.empty())
      return std::move(error).with_note("help: names are given beside directives: 'name: …'");
    return std::move(error).with_note(fmt::format("the names are {}", join(known, ", ")));
  }

  // `why` is null where nothing needs to be said.
  Status leave_out(const Sections::Item& item, const char* why) {
    PIPER_TRY(put_aside(item.node, scope_, "directive"));
    if (why) left_out_.push_back({item.node.at, kind_of(item).key.text, why});
    return ok_status();
  }

  // Returns the one of the claims that count; null: none does.
  Sections::Item* among(const Named& named) {
    std::vector<Given> given;
    std::vector<Sections::Item*> items;
    for (const Claim& claim : named.claims) {
      if (!claim.counts) continue;
      given.push_back(claim.given);
      items.push_back(claim.item);
    }
    return items.empty()
               ? nullptr
               : items[choice_.among(given, fmt::format("the directive '{}'", named.name))];
  }

  void choose(const Named& named) {
    Sections::Item* const chosen = among(named);
    for (const Claim& claim : named.claims) {
      if (!claim.item || claim.item == chosen) continue;
      // Of files of which neither includes the other both say the same.
      const bool is_said = chosen && !files_[chosen->file].below.contains(claim.item->file);
      const char* why = !claim.counts ? kWhen
                        : chosen      ? "a file that includes it has its own"
                                      : "it is dropped";
      errors_.add(leave_out(*claim.item, claim.counts && is_said ? nullptr : why));
    }
    if (!chosen) return;
    std::erase_if(chosen->node.entries, [](const yaml::Entry& e) { return e.key.text == "name"; });
    slots_[named.slot] = chosen;
  }

  const std::vector<StrategyFile>& files_;
  Choice& choice_;
  const Scope& scope_;
  std::vector<LeftOut>& left_out_;
  ErrorList& errors_;
  std::vector<Sections::Item*> slots_;
  std::vector<Named> named_;
};

}  // namespace

void choose_entries(Sections& sections, const std::vector<StrategyFile>& files, Choice& choice,
                    const Scope& scope, ErrorList& errors) {
  const auto entries = [&](std::string_view object, std::string_view section) {
    return Entries{object, section, scope, sections.left_out, errors};
  };
  for (yaml::Entry& entry : sections.annotate) {
    yaml::Node* rules =
        entry.value.is(yaml::Node::Kind::kMap) ? value_of(entry.value, "rules") : &entry.value;
    if (rules) entries("rule", "annotate").filter(rules->items);
  }
  for (yaml::Entry& entry : sections.once)
    if (yaml::Node* groups = entry.key.text == "train" ? value_of(entry.value, "groups") : nullptr)
      entries("group", "groups").filter(groups->items);
  entries("requirement", "require").filter(sections.require);
  entries("parameter", "parameters").filter(sections.parameters);
  Directives(files, choice, scope, sections.left_out, errors).choose_all(sections.directives);
}

}  // namespace piper
