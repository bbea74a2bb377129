// The parts of print_strategy.
#pragma once

#include "program.h"

namespace piper {

std::string print_expression(const expr::Tree& tree, const Variables& bound);
// Prints lines, each with its end.
std::string print_program(const program::Program& program, const Variables& bound);

// ---- YAML on one line ---------------------------------------------------------------------------

std::string print_key(std::string_view text);
std::string print_text(std::string_view text);  // where params are inserted
std::string print_expr(const Expr& value);
// Prints what read_glob joined: a list, or its only pattern.
std::string print_patterns(const std::string& joined);
// {a: 1, b: 2}
class Map {
 public:
  Map& add(std::string_view name, const std::string& value) {
    entries_.push_back(fmt::format("{}: {}", print_key(name), value));
    return *this;
  }
  std::string text() const { return fmt::format("{{{}}}", join(entries_, ", ")); }

 private:
  std::vector<std::string> entries_;
};
template <class Items, class Print>
std::string print_list(const Items& items, Print print) {
  std::vector<std::string> texts;
  for (const auto& item : items) texts.push_back(print(item));
  return fmt::format("[{}]", join(texts, ", "));
}
// Prints one item without brackets.
template <class Items, class Print>
std::string print_one_or_list(const Items& items, Print print) {
  return items.size() == 1 ? print(items.front()) : print_list(items, print);
}

}  // namespace piper
