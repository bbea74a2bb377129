// What the strategy says of the model itself, before anything is cut or placed.
#pragma once

#include "piper/planner/compile.h"

namespace piper {

ImportOptions import_options(const Strategy& strategy, const CompileOptions& from);
void explain_parameters(const Strategy& strategy, const Imported& imported, Explanations& out);
// Says where a model without module names is one layer to what works layer by layer.
void warn_without_modules(const Strategy& strategy, const Graph& graph,
                          std::vector<std::string>& warnings);
// Says whose directions, which are made of whole tensors, ranks with parts of the states share out,
// and whose each of them computes.
void explain_directions(const Dag& dag, const Strategy& strategy, Explanations& out);
// Explains groups of parameters and the scale of the loss.
void explain_training(const Strategy& strategy, const Graph& graph, Explanations& out);
// Takes the optimizers of the model's training_info, unless the strategy has one.
Status use_training(const Imported& imported, Strategy& strategy, Explanations& out);
// Returns the step of the model as it is evaluated: see `evaluated`. Explains by what batches
// count.
Result<Graph> evaluation_step(Graph forward, const Strategy& strategy, Explanations& out);
// Returns the loss that the strategy names, or the file's sole scalar.
Result<Graph> with_loss(Graph graph, const Strategy& strategy);

}  // namespace piper
