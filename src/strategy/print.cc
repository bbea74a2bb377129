// A strategy as one text: what its files, includes, params and definitions come to.
#include "print.h"

#include <algorithm>

#include "order_cells.h"
#include "text_checks.h"

namespace piper {
namespace {

// ---- YAML on one line ---------------------------------------------------------------------------

std::string in_quotes(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}
std::string key(std::string_view text) {
  return expr::is_identifier(text) ? std::string(text) : in_quotes(text);
}
std::string word(std::string_view text) {
  const bool plain = expr::is_identifier(text) && text != "true" && text != "false" &&
                     !yaml::yaml_surprise(text).has_value();
  return plain ? std::string(text) : in_quotes(text);
}
// Where params are inserted, a '$' is written twice.
std::string text_of(std::string_view text) {
  std::string out;
  for (const char c : text) out += c == '$' ? "$$" : std::string(1, c);
  return word(out);
}
std::string real(double value) { return fmt::format("{}", value); }
// In the largest unit that leaves a whole number.
std::string bytes(int64_t value) {
  for (const auto& [unit, size] : {std::pair("GiB", 1 << 30), {"MiB", 1 << 20}, {"KiB", 1 << 10}})
    if (value % size == 0 && value != 0) return fmt::format("{}{}", value / size, unit);
  return fmt::format("{}B", value);
}
std::string expression(const Expr& value) {
  const std::string text = value.spelled();
  const bool is_number = text.find_first_not_of("0123456789") == text.npos;
  return is_number ? text : word(text);
}
std::string list(const std::vector<std::string>& items) {
  return fmt::format("[{}]", join(items, ", "));
}

// {a: 1, b: 2}
class Map {
 public:
  Map& add(std::string_view name, const std::string& value) {
    entries_.push_back(fmt::format("{}: {}", key(name), value));
    return *this;
  }
  Map& add_if(bool given, std::string_view name, const std::string& value) {
    return given ? add(name, value) : *this;
  }
  bool empty() const { return entries_.empty(); }
  std::string entry() const { return join(entries_, ", "); }  // of one key, without its braces
  std::string text() const { return fmt::format("{{{}}}", join(entries_, ", ")); }

 private:
  std::vector<std::string> entries_;
};

template <class Value, class Print>
std::string map_of(const std::vector<std::pair<std::string, Value>>& entries, Print print) {
  Map map;
  for (const auto& [name, value] : entries) map.add(name, print(value));
  return map.text();
}
template <class Items, class Print>
std::string list_of(const Items& items, Print print) {
  std::vector<std::string> texts;
  for (const auto& item : items) texts.push_back(print(item));
  return list(texts);
}
std::string names_of(const std::vector<std::pair<std::string, SourceSpan>>& names) {
  return list_of(names, [](const auto& name) { return text_of(name.first); });
}
std::string type_name(DType dtype) { return std::string(info(dtype).name); }

// ---- Conditions ---------------------------------------------------------------------------------

std::string condition(const Condition& one) {
  using Kind = Condition::Kind;
  const bool in_words = !one.words.empty();
  switch (one.kind) {
    case Kind::kEquals:
      return in_words ? text_of(one.words.front()) : expression(one.low);
    case Kind::kAny:
      return "\"*\"";
    case Kind::kAbsent:
      return "absent";
    case Kind::kRange:
      return in_quotes(fmt::format("{}..{}", one.low.spelled(), one.high.spelled()));
    case Kind::kSet:
      return in_words ? list_of(one.words, text_of) : list_of(one.set, expression);
    case Kind::kCompare:
      return in_quotes(one.compare + one.low.spelled());
    case Kind::kBind:
      return word(one.bind);
  }
  return "";
}
std::string where_of(const Where& where) {
  Map map;
  for (const Condition& one : where) map.add(one.tag, condition(one));
  return map.text();
}

// ---- Sections -----------------------------------------------------------------------------------

class StrategyPrinter {
 public:
  explicit StrategyPrinter(const Strategy& strategy) : s_(strategy) {}

  std::string run() {
    text_ = "piper: 1\n";
    if (!s_.mesh.empty()) {
      Map mesh;
      for (const MeshAxis& axis : s_.mesh) mesh.add(axis.name, std::to_string(axis.size));
      line("mesh", mesh.text());
    }
    model();
    train();
    if (s_.weight_versions != 1) line("weight_versions", std::to_string(s_.weight_versions));
    annotate();
    directives();
    return std::move(text_);
  }

 private:
  void line(std::string_view name, const std::string& value) {
    text_ += fmt::format("{}: {}\n", name, value);
  }
  void item(std::string_view indent, const std::string& value) {
    text_ += fmt::format("{}- {}\n", indent, value);
  }
  void head(std::string_view name) { text_ += fmt::format("{}:\n", name); }

  // What names no order is sorted.
  void model() {
    if (!s_.inputs.empty()) {
      std::vector<InputBinding> inputs = s_.inputs;
      std::sort(inputs.begin(), inputs.end(),
                [](const auto& a, const auto& b) { return a.name < b.name; });
      head("inputs");
      for (const InputBinding& one : inputs)
        text_ += fmt::format("  {}: {}\n", key(one.name), input(one));
    }
    if (!s_.dims.empty()) {
      auto dims = s_.dims;
      std::sort(dims.begin(), dims.end());
      line("dims", map_of(dims, [](int64_t size) { return std::to_string(size); }));
    }
    if (!s_.parameters.empty()) head("parameters");
    for (const ParamRule& rule : s_.parameters) item("  ", parameter(rule));
    if (const auto* output = std::get_if<std::string>(&s_.loss))
      line("loss", Map().add("output", text_of(*output)).text());
    if (const auto* loss = std::get_if<CrossEntropyLoss>(&s_.loss))
      line("loss", Map().add("cross_entropy", cross_entropy(*loss)).text());
  }
  static std::string input(const InputBinding& one) {
    Map map;
    if (one.shape)
      map.add("shape", list_of(*one.shape, [](int64_t size) { return std::to_string(size); }));
    if (one.dtype) map.add("dtype", type_name(*one.dtype));
    if (one.batch_dim) map.add("batch_dim", std::to_string(*one.batch_dim));
    return map.text();
  }
  static std::string cross_entropy(const CrossEntropyLoss& loss) {
    return Map()
        .add("logits", text_of(loss.logits))
        .add("labels", text_of(loss.labels))
        .add("ignore_index", std::to_string(loss.ignore_index))
        .text();
  }
  static std::string parameter(const ParamRule& rule) {
    using Kind = ParamRule::Kind;
    const std::string match = text_of(rule.match);
    switch (rule.kind) {
      case Kind::kInclude: {
        Map map;
        map.add("match", match).add("as", text_of(rule.to));
        map.add_if(rule.transposed, "transposed", "true");
        return Map().add("include", rule.to.empty() ? match : map.text()).entry();
      }
      case Kind::kExclude:
        return Map().add("exclude", match).entry();
      case Kind::kFreeze:
        return Map().add("freeze", match).entry();
      case Kind::kThaw:
        return Map().add("thaw", match).entry();
      case Kind::kRename:
        return Map()
            .add("rename", Map().add("from", match).add("to", text_of(rule.to)).text())
            .entry();
      case Kind::kTie:
        return Map().add("tie", list_of(rule.names, text_of)).entry();
      case Kind::kStored:
        return Map()
            .add("stored", Map().add("match", match).add("plus", real(rule.plus)).text())
            .entry();
    }
    return "";
  }

  void train() {
    const TrainSpec& train = s_.train;
    const bool nothing = !s_.has_optimizer && train.groups.size() <= 1 && !train.clip_norm &&
                         train.schedule.warmup == 0 && !train.schedule.cosine &&
                         s_.global_batch == 0 && s_.microbatch_size == 0 && s_.seed == 0;
    if (nothing) return;
    head("train");
    const auto entry = [&](std::string_view name, const std::string& value) {
      text_ += fmt::format("  {}: {}\n", name, value);
    };
    if (s_.has_optimizer) entry("optimizer", optimizer(train.optimizer, train.groups.back()));
    if (train.groups.size() > 1) head("  groups");
    for (size_t g = 0; g + 1 < train.groups.size(); ++g)
      item("    ", Map()
                       .add("match", text_of(train.groups[g].match))
                       .add("lr", real(train.groups[g].lr))
                       .add("weight_decay", real(train.groups[g].weight_decay))
                       .text());
    if (train.clip_norm) entry("clip_norm", real(*train.clip_norm));
    if (const LrSchedule& rate = train.schedule; rate.warmup != 0 || rate.cosine) {
      Map map;
      map.add("warmup", std::to_string(rate.warmup));
      map.add_if(rate.cosine, "cosine",
                 Map()
                     .add("total", std::to_string(rate.total))
                     .add("min_ratio", real(rate.min_ratio))
                     .text());
      entry("schedule", map.text());
    }
    if (s_.global_batch != 0) entry("global_batch", std::to_string(s_.global_batch));
    if (s_.microbatch_size != 0) entry("microbatch_size", std::to_string(s_.microbatch_size));
    if (s_.seed != 0) entry("seed", std::to_string(s_.seed));
  }
  // With all of its numbers, defaults too.
  static std::string optimizer(const OptimizerSpec& spec, const ParamGroup& defaults) {
    using enum OptimizerKind;
    static constexpr const char* kNames[] = {"sgd", "adam", "adamw", "adagrad", "onnx_adam"};
    const OptimizerKind kind = spec.kind;
    const bool adam = kind == kAdam || kind == kAdamW || kind == kOnnxAdam;
    Map map;
    map.add("lr", real(defaults.lr));
    map.add_if(kind == kSgd, "momentum", real(spec.momentum));
    map.add_if(kind == kSgd, "dampening", real(spec.dampening));
    map.add_if(kind == kSgd, "nesterov", spec.nesterov ? "true" : "false");
    map.add_if(adam, "betas", list({real(spec.beta1), real(spec.beta2)}));
    map.add_if(kind == kAdagrad, "lr_decay", real(spec.lr_decay));
    map.add_if(kind != kSgd, "eps", real(spec.eps));
    map.add("weight_decay", real(defaults.weight_decay));
    map.add_if(kind == kOnnxAdam, "weight_decay_after", real(spec.weight_decay_after));
    map.add_if(kind == kAdagrad, "initial_accumulator_value", real(spec.accumulator));
    return Map().add(kNames[static_cast<size_t>(kind)], map.text()).text();
  }

  void annotate() {
    const Annotate& annotate = s_.annotate;
    if (annotate.rules.empty() && !annotate.strict) return;
    head("annotate");
    if (annotate.strict) text_ += "  strict: true\n  rules:\n";
    const std::string_view indent = annotate.strict ? "    " : "  ";
    for (const auto& rule : annotate.rules) item(indent, rule_of(rule));
  }
  static std::string rule_of(const std::variant<AnnotateRule, BalanceRule>& rule) {
    if (const auto* balance = std::get_if<BalanceRule>(&rule))
      return Map()
          .add("balance", Map()
                              .add("tag", text_of(balance->tag))
                              .add("into", std::to_string(balance->into))
                              .text())
          .entry();
    const auto& given = std::get<AnnotateRule>(rule);
    return Map()
        .add("match", text_of(given.match.pattern()))
        .add("tags", map_of(given.tags, expression))
        .text();
  }

  // ---- Directives, in the order of their phases ----
  void directives() {
    const size_t before = text_.size();
    const auto add = [&](std::string_view name, const std::string& value) {
      item("  ", Map().add(name, value).entry());
    };
    for (const Precision& one : s_.precisions) add("precision", precision(one));
    for (const Split& one : s_.splits)
      add("split", Map()
                       .add("dim", "batch")
                       .add("into", std::to_string(one.into))
                       .add("as", word(one.as))
                       .text());
    for (const Recompute& one : s_.recomputes) add("recompute", recompute(one));
    for (const Place& one : s_.places) add("place", place(one));
    for (const Replicate& one : s_.replicates) add("replicate", replicate(one));
    for (const ShardRule& one : s_.shards) add("shard", shard(one));
    for (const OffloadRule& one : s_.offloads) add("offload", offload(one));
    for (const StreamRule& one : s_.streams) add("stream", stream(one));
    for (const Prefetch& one : s_.prefetches)
      add("prefetch", Map()
                          .add("where", where_of(one.where))
                          .add("distance", one.eager ? "eager" : std::to_string(one.distance))
                          .text());
    for (const FuseRule& one : s_.fuses)
      add("fuse",
          Map()
              .add("where", where_of(one.where))
              .add_if(one.bucket_bytes != 0, "bucket", bytes(one.bucket_bytes))
              .add_if(one.microbatches != 1, "microbatches", std::to_string(one.microbatches))
              .text());
    for (const Order& one : s_.orders) order(one);
    if (text_.size() > before) text_.insert(before, "directives:\n");
  }

  std::string precision(const Precision& one) const {
    Map map;
    map.add("compute", type_name(one.compute));
    if (one.match) map.add("match", text_of(one.match->pattern()));
    map.add_if(!one.where.empty(), "where", where_of(one.where));
    map.add_if(!one.keep.empty(), "keep", names_of(one.keep));
    if (one.accumulate) map.add("accumulate", type_name(*one.accumulate));
    if (one.reduce) map.add("reduce", type_name(*one.reduce));
    map.add_if(!one.masters, "master", "none");
    if (one.scales_loss && s_.train.loss_scale)
      map.add("loss_scale", loss_scale(*s_.train.loss_scale));
    return map.text();
  }
  static std::string loss_scale(const LossScale& scale) {
    if (!scale.dynamic) return Map().add("static", real(scale.init)).text();
    return Map()
        .add("init_scale", real(scale.init))
        .add("growth_factor", real(scale.growth))
        .add("backoff_factor", real(scale.backoff))
        .add("growth_interval", std::to_string(scale.interval))
        .text();
  }
  static std::string recompute(const Recompute& one) {
    Map map;
    if (one.match) map.add("match", text_of(one.match->pattern()));
    map.add_if(!one.where.empty(), "where", where_of(one.where));
    map.add_if(!one.ops.empty(), "ops", names_of(one.ops));
    if (one.budget_bytes) map.add("budget", bytes(*one.budget_bytes));
    return map.text();
  }
  static std::string place(const Place& one) {
    Map map;
    map.add_if(!one.where.empty(), "where", where_of(one.where));
    map.add_if(!one.tags.empty(), "tags", map_of(one.tags, expression));
    return map.add("on", map_of(one.on, expression)).text();
  }
  // A type that `precision` gives to all is said there.
  std::string replicate(const Replicate& one) const {
    static constexpr const char* kWhen[] = {"per_pass", "per_microbatch", "per_step"};
    const bool shared = std::any_of(s_.precisions.begin(), s_.precisions.end(),
                                    [](const Precision& p) { return p.reduce.has_value(); });
    std::vector<std::string> shard;
    if (one.shard_optimizer) shard.emplace_back("optimizer");
    if (one.shard_gradients) shard.emplace_back("gradients");
    if (one.shard_parameters) shard.emplace_back("parameters");
    Map gather, reduce, map;
    gather.add_if(one.shard_parameters, "prefetch", std::to_string(one.prefetch));
    gather.add_if(one.shard_parameters, "when", kWhen[static_cast<size_t>(one.gather)]);
    gather.add_if(one.gather_stream != Replicate().gather_stream, "stream",
                  word(one.gather_stream));
    reduce.add_if(one.reduce == Replicate::When::kMicrobatch, "when", "per_microbatch");
    if (one.dtype && !shared) reduce.add("dtype", type_name(*one.dtype));
    map.add("over", text_of(one.over));
    map.add_if(one.bucket_bytes != 0, "bucket", bytes(one.bucket_bytes));
    map.add_if(one.stream != Replicate().stream, "stream", word(one.stream));
    map.add_if(!shard.empty(), "shard", list(shard));
    map.add_if(one.persist_bytes != 0, "persist", bytes(one.persist_bytes));
    map.add_if(!gather.empty(), "gather", gather.text());
    map.add_if(!reduce.empty(), "reduce", reduce.text());
    return map.text();
  }
  static std::string shard(const ShardRule& one) {
    Map map;
    const auto pattern = [](const Glob& glob) { return text_of(glob.pattern()); };
    map.add_if(!one.match.empty(), "match", list_of(one.match, pattern));
    map.add_if(!one.scope.empty(), "scope", list_of(one.scope, pattern));
    map.add_if(!one.input.empty(), "input", list_of(one.input, pattern));
    map.add_if(!one.sends.empty(), "sends", list_of(one.sends, pattern));
    map.add_if(!one.attention.empty(), "attention", list_of(one.attention, pattern));
    map.add_if(!one.by.empty(), "by", one.by);
    map.add_if(one.has_dim(), "dim", one.dim ? std::to_string(*one.dim) : "none");
    map.add_if(one.pad, "pad", "true");
    return map.add("over", text_of(one.over)).text();
  }
  static std::string offload(const OffloadRule& one) {
    Map map;
    map.add("what", one.optimizer ? "optimizer" : "activations");
    if (one.match) map.add("match", text_of(one.match->pattern()));
    map.add_if(!one.where.empty(), "where", where_of(one.where));
    map.add_if(one.min_bytes != 0, "min", bytes(one.min_bytes));
    map.add_if(one.distance != 1, "distance", std::to_string(one.distance));
    map.add_if(one.in_flight != 1, "in_flight", std::to_string(one.in_flight));
    return map.text();
  }
  static std::string stream(const StreamRule& one) {
    Map map;
    if (one.where) map.add("where", where_of(*one.where));
    map.add("name", word(one.name));
    if (one.priority) map.add("priority", std::to_string(*one.priority));
    if (one.sms) map.add("sms", std::to_string(*one.sms));
    return map.text();
  }

  void order(const Order& one) {
    text_ += fmt::format("  - order:\n      each: {}\n", text_of(one.each));
    if (!one.program.empty()) {
      const auto program = program::parse(one);
      PIPER_CHECK(program.ok(), "a program that was read is none");
      text_ += "      program: |\n";
      for (const std::string& line : split_text(print_program(*program, one.bound), '\n'))
        if (!line.empty()) text_ += fmt::format("        {}\n", line);
    } else if (one.policy) {
      text_ += fmt::format("      policy: {}\n", policy(*one.policy));
    } else {
      text_ += "      lists:\n";
      for (const auto& row : one.rows) item("        ", in_quotes(row_of(row)));
    }
  }
  static std::string policy(const Policy& policy) {
    Map map;
    map.add("prefer", list_of(policy.prefer, word));
    if (policy.in_flight) map.add("in_flight", expression(*policy.in_flight));
    map.add_if(policy.memory != 0, "memory", bytes(policy.memory));
    map.add_if(policy.unit_costs, "costs", "unit");
    return map.text();
  }
  static std::string row_of(const std::vector<OrderCell>& row) {
    std::string text;
    for (const OrderCell& cell : row) {
      if (!text.empty() && text.back() != '&') text += ' ';
      text += order_cells::name(cell) + (cell.paired ? "&" : "");
    }
    return text;
  }

  const Strategy& s_;
  std::string text_;
};

}  // namespace

std::string print_strategy(const Strategy& strategy) { return StrategyPrinter(strategy).run(); }

}  // namespace piper
