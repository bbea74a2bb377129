// What hides keys: terms and conditions of the scores, as values with few elements, and those that
// are constants.
#include <algorithm>
#include <cmath>

#include "attention.h"

namespace piper::patterns {
namespace {

constexpr size_t kMostLifts = 64;  // between a condition and the scores
// Conditions that are seen as parts of others, of one mask; those further up stay whole.
constexpr int kMostConditions = 256;

// Returns the elements that a run goes over, in its order.
std::vector<size_t> places_of(const Modes& run) {
  std::vector<size_t> places{0};
  for (const Mode& mode : run) {
    std::vector<size_t> next;
    for (const size_t place : places)
      for (int64_t i = 0; i < mode.extent; ++i)
        next.push_back(place + static_cast<size_t>(i * mode.stride));
    places = std::move(next);
  }
  return places;
}

// Says what a constant mask says of keys, by query: all are seen, or those up to the query's number
// and `offset`.
struct ConstantMask {
  enum Kind { kNone, kCausal, kOther } kind = kOther;
  int64_t offset = 0;
};
ConstantMask read_mask(const std::vector<std::vector<bool>>& seen) {
  const auto all = [](const std::vector<bool>& row) {
    return std::all_of(row.begin(), row.end(), [](bool is) { return is; });
  };
  if (std::all_of(seen.begin(), seen.end(), all)) return {ConstantMask::kNone};
  const auto& first = seen.front();
  const int64_t offset = std::find(first.begin(), first.end(), false) - first.begin() - 1;
  if (offset < 0) return {};
  for (size_t i = 0; i < seen.size(); ++i)
    for (size_t j = 0; j < seen[i].size(); ++j)
      if (seen[i][j] != (static_cast<int64_t>(j) <= static_cast<int64_t>(i) + offset)) return {};
  return {ConstantMask::kCausal, offset};
}

bool rises_by_one(const std::vector<double>& all) {
  for (size_t i = 1; i < all.size(); ++i)
    if (all[i] != all[i - 1] + 1) return false;
  return true;
}

}  // namespace

// Says what leads from a value to the scores: a view, or else that it is broadcast to a shape.
struct ScoreReader::Lift {
  const Node* view = nullptr;
  Shape to;
};

std::optional<Modes> ScoreReader::lifted(ValueId value, const std::vector<Lift>& lifts,
                                         const ViewDims& scores) const {
  std::optional<ViewDims> dims = dims_of(shape(value));
  for (size_t i = lifts.size(); i-- > 0 && dims;)
    dims = lifts[i].view ? seen_through(graph_, *lifts[i].view, *dims)
                         : broadcast_to(*dims, lifts[i].to);
  return dims ? run_of(*dims, scores) : std::nullopt;
}

// Returns a step of the values with the fewest elements that its own is a view of: a term, or
// conditions that are true together. None where the dims of a value cannot be told.
std::vector<MaskStep> ScoreReader::sources_of(const MaskStep& step) const {
  int opened = 0;
  return sources_below(step, {}, opened);
}

std::vector<MaskStep> ScoreReader::sources_below(MaskStep step, std::vector<Lift> lifts,
                                                 int& opened) const {
  const auto first = lifted(step.value, lifts, step.scores);
  if (!first) return {};
  step.run = *first;
  MaskStep best = step;
  while (const Node* node = match_.producer(step.value)) {
    if (auto parts = parts_of(step, *node, lifts, opened); !parts.empty()) return parts;
    const bool turns = step.kind == MaskStep::kKeep && node->op == "Not";
    if ((!turns && !is_view(graph_, *node)) || lifts.size() >= kMostLifts) break;
    if (!turns) lifts.push_back({node, {}});
    step.inverted = step.inverted != turns;
    step.value = node->inputs[0];
    const auto run = lifted(step.value, lifts, step.scores);
    if (!run) break;
    step.run = *run;
    const int64_t now = num_elements(shape(step.value)), then = num_elements(shape(best.value));
    if (now < then || turns) best = step;
  }
  return {best};
}

// Returns the conditions of a term that is -∞ where one hides a key, or that one condition is made
// of.
std::vector<MaskStep> ScoreReader::parts_of(const MaskStep& step, const Node& node,
                                            std::vector<Lift> lifts, int& opened) const {
  const bool keeps = step.kind == MaskStep::kKeep;
  std::vector<ValueId> conditions;
  MaskStep part = step;
  if (keeps && std::isinf(step.number) && node.op == (step.inverted ? "Or" : "And")) {
    conditions = node.inputs;
    if (conditions[0] == conditions[1]) conditions.pop_back();
  } else if (const auto low = keeps ? std::nullopt : hides(step, node); low && std::isinf(*low)) {
    conditions = {node.inputs[0]};
    part.kind = MaskStep::kKeep;
    part.number = *low;
    part.inverted = number(node.inputs[1]) != 0.0;
  }
  if (conditions.empty() || lifts.size() >= kMostLifts || ++opened > kMostConditions) return {};
  lifts.push_back({nullptr, shape(step.value)});
  std::vector<MaskStep> parts;
  for (const ValueId condition : conditions) {
    part.value = condition;
    const std::vector<MaskStep> sources = sources_below(part, lifts, opened);
    if (sources.empty()) return {};
    for (const MaskStep& source : sources)  // a condition hides once what it hides twice
      if (std::none_of(parts.begin(), parts.end(), [&](const MaskStep& known) {
            return known.value == source.value && known.inverted == source.inverted &&
                   known.run == source.run;
          }))
        parts.push_back(source);
  }
  return parts;
}

// Returns what a term adds to the scores of keys that a condition hides, where it adds nothing to
// others.
std::optional<double> ScoreReader::hides(const MaskStep& term, const Node& where) const {
  if (where.op != "Where" || !(term.number > 0)) return std::nullopt;
  if (shape(where.inputs[0]) != shape(where.outputs[0])) return std::nullopt;
  const auto yes = number(where.inputs[1]), no = number(where.inputs[2]);
  if (!yes || !no || (*yes != 0 && *no != 0)) return std::nullopt;
  const double low = term.number * std::min(*yes, *no);
  return low <= kVeryLow ? std::optional(low) : std::nullopt;
}

// Returns whether a step makes those scores very low whose weights become zero.
bool ScoreReader::is_hidden_by(const MaskStep& step, const MaskStep& hidden) const {
  MaskStep condition = step;
  if (step.kind == MaskStep::kAdd) {
    const Node* where = match_.producer(step.value);
    if (!where || !hides(step, *where)) return hides_alike(step, hidden);
    condition.kind = MaskStep::kKeep;
    condition.value = where->inputs[0];
    condition.inverted = number(where->inputs[1]) != 0.0;
  } else if (step.number > kVeryLow) {
    return false;
  }
  condition.number = hidden.number;
  const auto a = sources_of(condition), b = sources_of(hidden);
  if (a.empty() || b.empty()) return false;
  return a[0].value == b[0].value ? a[0].inverted == b[0].inverted && a[0].run == b[0].run
                                  : hides_alike(step, hidden);
}

// Returns the same of two constants.
bool ScoreReader::hides_alike(const MaskStep& step, const MaskStep& hidden) const {
  const auto a = sources_of(step), b = sources_of(hidden);
  if (a.size() != 1 || b.size() != 1) return false;
  const auto scores = match_.elements(a[0].value), weights = match_.elements(b[0].value);
  const int64_t all = extent_of(a[0].run);
  const Shape rows{all / (queries_ * keys_), queries_ * keys_};
  const auto of_scores = cut(a[0].run, rows), of_weights = cut(b[0].run, rows);
  if (!scores || !weights || !of_scores || !of_weights || !is_repeated((*of_scores)[0]) ||
      !is_repeated((*of_weights)[0]))
    return false;
  const auto x = places_of((*of_scores)[1]), y = places_of((*of_weights)[1]);
  for (size_t i = 0; i < x.size(); ++i) {
    const double score = (*scores)[x[i]];
    const bool seen = ((*weights)[y[i]] != 0) != b[0].inverted;
    const bool term = a[0].kind == MaskStep::kAdd;
    if (term ? seen ? score != 0 : !(score * a[0].number <= kVeryLow)
             : ((score != 0) != a[0].inverted) != seen)
      return false;
  }
  return true;
}

// Returns the elements of a constant, and keeps those of the last one: the layers of a model share
// their masks.
const std::vector<double>* ScoreReader::elements_of(ValueId id) {
  if (id != last_constant_) last_elements_ = match_.elements(id), last_constant_ = id;
  return last_elements_ ? &*last_elements_ : nullptr;
}

// Returns which key each query with its number added sees last, where a comparison of numbers that
// count queries and keys says so: constants of few elements in place of one for each score.
std::optional<int64_t> ScoreReader::counted(const MaskStep& step) const {
  const Node* node = match_.producer(step.value);
  if (!node || node->op != "GreaterOrEqual" || step.kind != MaskStep::kKeep || step.inverted ||
      step.number > kVeryLow || shape(step.value) != Shape{queries_, keys_} ||
      shape(node->inputs[0]) != Shape{queries_, 1})
    return std::nullopt;
  const auto apart = cut(step.run, {extent_of(step.run) / (queries_ * keys_), queries_, keys_});
  const auto counts = [&](const Modes& modes, int64_t stride) {
    return modes.empty() || (modes.size() == 1 && modes[0].stride == stride);
  };
  if (!apart || !is_repeated((*apart)[0]) || !counts((*apart)[1], keys_) || !counts((*apart)[2], 1))
    return std::nullopt;
  const auto last = match_.elements(node->inputs[0]), key = match_.elements(node->inputs[1]);
  if (!last || !key || key->size() != static_cast<size_t>(keys_)) return std::nullopt;
  if (!rises_by_one(*last) || !rises_by_one(*key)) return std::nullopt;
  return static_cast<int64_t>(last->front() - key->front());
}

// Returns a constant condition or term that hides no key, or those after each query's.
bool ScoreReader::read_constant(const MaskStep& step, Scores& scores) {
  if (const auto offset = counted(step); offset && *offset >= 0) {
    if (*offset >= keys_ - 1) return true;  // it hides none
    scores.offset = scores.causal ? std::min(scores.offset, *offset) : *offset;
    return scores.causal = true;
  }
  const std::vector<double>* elements = elements_of(step.value);
  if (!elements || (step.kind == MaskStep::kKeep && step.number > kVeryLow)) return false;
  const auto apart = cut(step.run, {extent_of(step.run) / (queries_ * keys_), queries_, keys_});
  if (!apart) return false;
  Modes lead;
  for (const Mode& mode : (*apart)[0])
    if (mode.stride != 0) lead.push_back(mode);
  const auto by_lead = places_of(lead), by_query = places_of((*apart)[1]),
             by_key = places_of((*apart)[2]);
  std::vector<std::vector<bool>> seen(by_query.size(), std::vector<bool>(by_key.size()));
  for (size_t q = 0; q < by_query.size(); ++q) {
    for (size_t k = 0; k < by_key.size(); ++k) {
      const size_t place = by_query[q] + by_key[k];
      const double x = (*elements)[place];
      const bool term = step.kind == MaskStep::kAdd;
      if (term && x != 0 && !(x * step.number <= kVeryLow)) return false;
      seen[q][k] = (x != 0) != (term || step.inverted);
      for (const size_t other : by_lead)
        if ((*elements)[other + place] != x) return false;
    }
  }
  const ConstantMask mask = read_mask(seen);
  if (mask.kind == ConstantMask::kOther) return false;
  if (mask.kind == ConstantMask::kNone) return true;
  scores.offset = scores.causal ? std::min(scores.offset, mask.offset) : mask.offset;
  return scores.causal = true;
}

bool ScoreReader::settle(const Scores& raw, const std::vector<MaskStep>& hidden, Scores& scores) {
  scores = raw;
  scores.masks.clear();
  std::vector<MaskStep> steps = raw.masks;
  for (const MaskStep& weight : hidden) {
    const auto by = std::find_if(steps.begin(), steps.end(),
                                 [&](const MaskStep& step) { return is_hidden_by(step, weight); });
    if (by == steps.end())
      return no("weights are set to zero after the softmax by another mask than its own");
    *by = weight;
    by->number = -std::numeric_limits<double>::infinity();
  }
  for (const MaskStep& step : steps) {
    std::vector<MaskStep> sources = sources_of(step);
    if (sources.empty())
      return no("the dims of '{}' cannot be told", graph_.value(step.value).name);
    for (MaskStep& source : sources)
      if (!read_constant(source, scores)) scores.masks.push_back(std::move(source));
  }
  for (MaskStep& step : scores.masks) {  // a sink is seen by all
    if (scores.sink.valid() && step.kind == MaskStep::kKeep && step.number <= kVeryLow)
      step.number = -std::numeric_limits<double>::infinity();
    const DType dtype = graph_.value(step.value).type.dtype;
    if (dtype == DType::kBool || dtype == dtype_) continue;
    const Node* cast = match_.producer(step.value);
    if (!cast || cast->op != "Cast" || graph_.value(cast->inputs[0]).type.dtype != dtype_)
      return no("a term of its scores is {}, its queries are {}", info(dtype).name,
                info(dtype_).name);
    step.value = cast->inputs[0];
  }
  const bool one_number =
      std::all_of(scores.masks.begin(), scores.masks.end(), [&](const MaskStep& step) {
        return step.kind == MaskStep::kKeep && step.number == scores.masks[0].number;
      });
  // An added term lets gradients through where a replaced score does not: but for keys that are
  // never seen, one does not stand for the other.
  const bool joins = std::all_of(
      scores.masks.begin(), scores.masks.end(),
      [](const MaskStep& step) { return step.kind == MaskStep::kAdd || std::isinf(step.number); });
  return one_number || joins ||
         no("terms are added to scores that another number than -∞ stands for");
}

}  // namespace piper::patterns
