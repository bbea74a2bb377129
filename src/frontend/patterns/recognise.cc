// The list of patterns in the order in which they run.
#include "match.h"
#include "piper/frontend/patterns.h"
#include "piper/ir/signatures.h"

namespace piper {
namespace {

struct Pattern {
  PatternForm form;
  patterns::Count (*recognise)(Graph& graph);
};
// In this order: what a composite has taken in is gone when the next one looks.
constexpr Pattern kPatterns[] = {
    {{"LayerNorm",
      "(x - mean) / sqrt(mean((x - mean)²) + ε) over the last dims, with Div, Reciprocal or Pow; "
      "scaled and biased, scaled, or bare."},
     patterns::recognise_layer_norm},
    {{"RmsNorm",
      "x / sqrt(mean(x²) + ε) over the last dims, with Div, Reciprocal or Pow; scaled or bare."},
     patterns::recognise_rms_norm},
    {{"GroupNorm",
      "An instance norm of the groups as channels, between two Reshapes, then scale and bias of "
      "the "
      "true channels."},
     patterns::recognise_group_norm},
    {{"Rotary",
      "x·cos + Concat(-x₂, x₁)·sin with the halves x₁ and x₂ of x, by tables whose halves are "
      "equal: "
      "constants, or made from a value beside itself. Moves before a swap of heads and tokens."},
     patterns::recognise_rotary},
    {{"Attention",
      "Softmax of the scaled products of q and k, times v, whatever Reshapes, Transposes, "
      "Expands and Casts stand between, in which order the operands and their dims are. Scaled "
      "on q, k or the product, by numbers or by values that are the same for all keys (then q "
      "is multiplied); soft-capped; masked by added terms or Where, several of them; guarded "
      "against rows of NaN, or hidden keys' weights put to zero (a row without keys gives 0); "
      "repeated heads of k and v read once. A constant mask is read: where it hides exactly the "
      "keys behind each query's, the composite is causal and skips them. Constants of -10⁴ and "
      "less hide a key there. A query all of whose keys a finite number of -2²⁶ or less (in f64 "
      "-2⁵⁶) hides gives them equal weights, as the softmax does."},
     patterns::recognise_attention},
    {{"Gelu", "x · ½(1 + erf(x/√2)) and the tanh form, factors and terms in any order."},
     patterns::recognise_gelu},
    {{"SwiGlu", "x · sigmoid(x) · y."}, patterns::recognise_swiglu},
    {{"Silu", "x · sigmoid(x)."}, patterns::recognise_silu},
    {{"CrossEntropySum",
      "A sum over all rows of the log-probabilities, by LogSoftmax over the classes, that "
      "GatherElements picks for the labels; rows of one ignored label left out by a factor or "
      "Where."},
     patterns::recognise_picked_cross_entropy},
    {{"CrossEntropySum",
      "Of log-probabilities that a LogSoftmax over the classes makes, also transposed: the logits "
      "are read once."},
     patterns::recognise_cross_entropy},
    {{"GroupedMatMul",
      "Rows times matrices of a stack that GatherND or Gather look up for each: experts of a "
      "mixture. No matrix is copied."},
     patterns::recognise_grouped},
    {{"MatMul",
      "Of a transposed operand, also through Reshapes of the leading dims and a factor: the "
      "transposition becomes a flag."},
     patterns::fold_transposes},
    {{"Concat", "A sum of zero-padded parts that tile one dim (the gradient of a split)."},
     patterns::join_padded_parts},
};

}  // namespace

std::vector<PatternForm> known_patterns() {
  std::vector<PatternForm> forms;
  for (const Pattern& pattern : kPatterns) forms.push_back(pattern.form);
  return forms;
}

Result<Recognised> recognise(Graph graph) {
  Recognised result;
  for (const Pattern& pattern : kPatterns) {
    const patterns::Count found = pattern.recognise(graph);
    if (found == 0) continue;
    result.counts.emplace_back(pattern.form.op, found);
    PIPER_ASSIGN(graph, in_topological_order(std::move(graph)));
    graph = without_dead_nodes(std::move(graph), true);
  }
  result.left = patterns::left_attentions(graph);
  patterns::raise_hiding_terms(graph);
  patterns::guard_before_softmax(graph);
  PIPER_ASSIGN(graph, in_topological_order(std::move(graph)));
  graph = without_dead_nodes(std::move(graph), true);
  result.graph = std::move(graph);
  PIPER_TRY(check_graph(result.graph));
  PIPER_TRY(check_types(result.graph));
  return result;
}

}  // namespace piper
