// Strategies and order programs as texts, for tests.
#pragma once

#include <gtest/gtest.h>

#include <map>

#include "folder.h"
#include "piper/frontend/strategy.h"

namespace piper {

inline Result<Strategy> parse(const std::string& text,
                              const std::vector<Definition>& defines = {}) {
  const Folder folder;
  return parse_strategy(folder.write("strategy.yaml", text), defines);
}

// The strategy; a failure stops the test program's case with the error's text.
inline Strategy parsed(const std::string& text, const std::vector<Definition>& defines = {}) {
  Result<Strategy> strategy = parse(text, defines);
  if (strategy) return *std::move(strategy);
  ADD_FAILURE() << print_error(strategy.error());
  return {};
}

inline std::string message(const std::string& text) {
  const Result<Strategy> strategy = parse(text);
  return strategy ? "" : strategy.error().message;
}

inline Order order_of(const std::string& program, const std::string& file) {
  Order order;
  order.each = {"pp"};
  order.program = program;
  const std::vector<std::string> lines = split_text(program, '\n');
  for (size_t i = 0; i < lines.size(); ++i)
    order.lines.push_back({file, static_cast<int>(i) + 1, 1, static_cast<int>(lines[i].size())});
  return order;
}

// The items as a device runs them: "F0 F1 B0", numbers counted for each pass and chunk. Items with
// '?' stop at M.
inline std::string row(const std::vector<OrderItem>& items, int64_t microbatches) {
  std::map<std::string, int64_t> taken;
  std::string out;
  bool inside_pair = false;
  for (const OrderItem& item : items) {
    std::string name = item.pass;
    for (const auto& [tag, value] : item.tags) name = fmt::format("{}{}:", tag, value) + name;
    int64_t& next = taken[name];
    if (item.optional && next == microbatches) continue;
    if (!out.empty()) out += inside_pair ? "&" : " ";
    out += name + std::to_string(next++);
    inside_pair = item.paired;
  }
  return out;
}

inline std::string expand(const std::string& program, int64_t r, int64_t P, int64_t M) {
  const auto items = expand_order(order_of(program, "program"), {{"r", r}, {"P", P}, {"M", M}});
  if (!items) return print_error(items.error());
  return row(*items, M);
}

inline std::string library_program(const std::string& name) {
  const auto strategy = parse_strategy(std::string(PIPER_SOURCE_DIR) + "/strategies/" + name, {});
  EXPECT_TRUE(strategy.ok()) << print_error(strategy.error());
  return strategy->orders.at(0).program;
}

}  // namespace piper
