// Parts of a tensor that are trained by themselves: their names, and what they are without the
// rest.
#include "piper/plan/trained_parts.h"

#include "piper/plan/sites.h"

namespace piper {

bool is_trained_part(const Tensor& tensor) {
  return !tensor.cuts.empty() && tensor.cuts[0].axis < 0;
}

std::string prefix_of_part(int64_t index) { return "part." + std::to_string(index) + "."; }

std::string name_of_whole(const Tensor& tensor, const std::string& name) {
  if (!is_trained_part(tensor)) return name;
  const size_t prefix = prefix_of_part(tensor.cuts[0].outer).size();
  const auto site = site_of(name);
  return site ? name_at_site(site->site, site->name.substr(prefix)) : name.substr(prefix);
}

Tensor by_itself(Tensor tensor) {
  if (!is_trained_part(tensor)) return tensor;
  const TensorCut cut = tensor.cuts[0];
  tensor.cuts.erase(tensor.cuts.begin());
  tensor.whole[static_cast<size_t>(cut.dim)] = cut.block;
  if (tensor.is_whole()) tensor.whole.clear();
  return tensor;
}

}  // namespace piper
