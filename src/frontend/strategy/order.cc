// Expands order directives into items, one coordinate at a time.
#include <algorithm>

#include "program.h"

namespace piper {
namespace {

using program::Statement;

constexpr size_t kMaxItems = size_t{1} << 18;  // a line of text makes tens of megabytes of them
constexpr int64_t kMaxSteps = 10000000;

// Runs a program for one coordinate. A name lives from its statement to the end of its block.
class Runner {
 public:
  Runner(const Variables& variables, const Variables& bound) : names_(variables), bound_(bound) {}

  Status run(const program::Program& block) {
    const size_t outside = names_.size();
    for (const Statement& statement : block) PIPER_TRY(run(statement));
    names_.resize(outside);
    return ok_status();
  }
  std::vector<OrderItem> take() { return std::move(items_); }

 private:
  Result<int64_t> value(const expr::Tree& tree) const {
    return expr::evaluate(tree, names_, bound_);
  }

  Status run(const Statement& statement) {
    if (++steps_ > kMaxSteps) {
      return fail(statement.at, "the order program runs more than {} steps", kMaxSteps);
    }
    switch (statement.kind) {
      case Statement::Kind::kItems:
        return emit(statement);
      case Statement::Kind::kRepeat:
        return repeat(statement);
      case Statement::Kind::kFor:
        return loop(statement);
      case Statement::Kind::kIf:
        return choose(statement);
      case Statement::Kind::kLet:
        return let(statement);
    }
    return ok_status();
  }

  Status emit(const Statement& statement) {
    for (const program::Item& item : statement.items) {
      if (items_.size() >= kMaxItems) {
        return fail(item.at, "the order program makes more than {} items", kMaxItems);
      }
      OrderItem out{item.pass, {}, item.optional, item.paired, item.apart, item.at, item.pair_at};
      for (const auto& [tag, tree] : item.tags) {
        PIPER_ASSIGN(const int64_t number, value(tree));
        out.tags.emplace_back(tag, number);
      }
      items_.push_back(std::move(out));
    }
    return ok_status();
  }

  // Counts below zero are zero: 'repeat M - P:' has nothing to do when P is larger.
  Status repeat(const Statement& statement) {
    PIPER_ASSIGN(const int64_t count, value(statement.first));
    for (int64_t i = 0; i < count; ++i) PIPER_TRY(pass_through(statement));
    return ok_status();
  }

  Status loop(const Statement& statement) {
    PIPER_ASSIGN(const int64_t first, value(statement.first));
    PIPER_ASSIGN(const int64_t last, value(statement.second));
    for (int64_t i = first; i < last; ++i) {
      names_.emplace_back(statement.name, i);
      PIPER_TRY(pass_through(statement));
      names_.pop_back();
    }
    return ok_status();
  }

  // Empty turns count too, or a loop around nothing would run for ever.
  Status pass_through(const Statement& statement) {
    if (++steps_ > kMaxSteps) {
      return fail(statement.at, "the order program runs more than {} steps", kMaxSteps);
    }
    return run(statement.body);
  }

  Status choose(const Statement& statement) {
    PIPER_ASSIGN(const int64_t condition, value(statement.first));
    return run(condition != 0 ? statement.body : statement.otherwise);
  }

  Status let(const Statement& statement) {
    PIPER_ASSIGN(const int64_t number, value(statement.first));
    names_.emplace_back(statement.name, number);
    return ok_status();
  }

  Variables names_;
  const Variables& bound_;
  std::vector<OrderItem> items_;
  int64_t steps_ = 0;
};

void collect_items(const program::Program& block, std::vector<const program::Item*>& out) {
  for (const Statement& statement : block) {
    for (const program::Item& item : statement.items) out.push_back(&item);
    collect_items(statement.body, out);
    collect_items(statement.otherwise, out);
  }
}

// An explicit row asks for each task by its stage and microbatch.
Result<std::vector<OrderItem>> row_items(const Order& order, const Variables& variables) {
  const auto r = std::find_if(variables.begin(), variables.end(),
                              [](const auto& variable) { return variable.first == "r"; });
  PIPER_CHECK(r != variables.end() && r->second < static_cast<int64_t>(order.rows.size()),
              "no row for a coordinate");
  std::vector<OrderItem> items;
  for (const OrderCell& cell : order.rows[static_cast<size_t>(r->second)]) {
    OrderItem item{cell.type, {}, false, cell.paired, cell.apart, cell.at, cell.at};
    if (cell.stage >= 0) item.tags.emplace_back("stage", cell.stage);
    item.tags.emplace_back(order.micro, cell.micro);
    items.push_back(std::move(item));
  }
  return items;
}

// Returns the passes or the tags of an order without a program.
std::vector<std::string> named_in_rows(const Order& order, bool passes) {
  std::vector<std::string> out;
  if (passes && order.policy) out = order.policy->prefer;
  for (const auto& row : order.rows) {
    for (const OrderCell& cell : row) {
      if (!passes && cell.stage < 0) continue;
      const std::string name = passes ? cell.type : "stage";
      if (std::find(out.begin(), out.end(), name) == out.end()) out.push_back(name);
    }
  }
  return out;
}

}  // namespace

Result<std::vector<OrderItem>> expand_order(const Order& order, const Variables& variables) {
  if (!order.rows.empty()) return row_items(order, variables);
  PIPER_ASSIGN(const program::Program program, program::parse(order));
  std::vector<std::string> known;
  for (const auto* from : {&variables, &order.bound}) {
    for (const auto& [name, value] : *from) known.push_back(name);
  }
  PIPER_TRY(program::check_names(program, known));
  Runner runner(variables, order.bound);
  PIPER_TRY(runner.run(program));
  return runner.take();
}

Result<std::vector<std::string>> passes_named(const Order& order) {
  if (order.program.empty()) return named_in_rows(order, true);
  PIPER_ASSIGN(const program::Program program, program::parse(order));
  std::vector<const program::Item*> items;
  collect_items(program, items);
  std::vector<std::string> out;
  for (const char* pass : {"F", "R", "B", "BI", "BW", "S", "U"}) {
    const bool named = std::any_of(items.begin(), items.end(),
                                   [&](const program::Item* item) { return item->pass == pass; });
    if (named) out.emplace_back(pass);
  }
  return out;
}

Result<bool> names_updates(const Order& order) {
  if (order.program.empty()) return false;
  PIPER_ASSIGN(const program::Program program, program::parse(order));
  std::vector<const program::Item*> items;
  collect_items(program, items);
  return std::any_of(items.begin(), items.end(), [](const program::Item* item) {
    return item->pass == "U" && !item->tags.empty();
  });
}

Result<std::vector<std::string>> tags_named(const Order& order) {
  if (order.program.empty()) return named_in_rows(order, false);
  PIPER_ASSIGN(const program::Program program, program::parse(order));
  std::vector<const program::Item*> items;
  collect_items(program, items);
  std::vector<std::string> out;
  for (const program::Item* item : items) {
    for (const auto& [tag, value] : item->tags) {
      if (std::find(out.begin(), out.end(), tag) == out.end()) out.push_back(tag);
    }
  }
  return out;
}

}  // namespace piper
