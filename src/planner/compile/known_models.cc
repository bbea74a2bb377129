// What compilations of one process know of models.
#include "known_models.h"

#include "model.h"

namespace piper {

std::shared_ptr<KnownModels> make_known_models() { return std::make_shared<KnownModels>(); }

std::string key_of_model(const Strategy& strategy, const CompileOptions& options) {
  const ImportOptions import = import_options(strategy, options);
  Strategy of_model;  // what import and loss read of it, without places
  of_model.inputs = strategy.inputs;
  of_model.dims = strategy.dims;
  of_model.parameters = strategy.parameters;
  of_model.seed = strategy.seed;
  of_model.loss = strategy.loss;
  of_model.train = strategy.train;  // the printer requires one
  return fmt::format("{}\n{}\n{} {}\n{}", options.model, options.initial_values,
                     options.absent_values, import.batch, print_strategy(of_model));
}

}  // namespace piper
