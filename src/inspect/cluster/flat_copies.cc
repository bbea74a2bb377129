// What frameworks copy between tensors and the buffers of their collectives.
#include "flat_copies.h"

#include <functional>
#include <numeric>
#include <unordered_map>
#include <unordered_set>

#include "piper/plan/flops.h"
#include "topology.h"

namespace piper::cluster {
namespace {

class Copies {
 public:
  Copies(const ClusterDevice& device, const RoleProgram& role,
         const std::vector<Instruction>& section)
      : device_(device), role_(role), section_(section), times_(section.size()) {}

  std::vector<double> run() {
    for (size_t i = 0; i < section_.size(); ++i) {
      const Instruction& one = section_[i];
      if (one.kind == InstructionKind::kCompute)
        compute(i);
      else if (takes_pairs(one.kind) && info(one.kind).whole >= 0 && one.dim < 0)
        move_flat(one);
      else if (device_.copies.strided && runs_of(one) > 1)
        times_[i] += time_of(static_cast<double>(bytes_through(role_, one)));
    }
    return std::move(times_);
  }

 private:
  double time_of(double bytes) const {
    return device_.launch + 2 * bytes / (device_.bandwidth * device_.of_memory);
  }
  double bytes_of(int32_t buffer) const {
    return static_cast<double>(role_.tensor(buffer).type.bytes());
  }
  void compute(size_t i) {
    double bytes = 0;
    for (const int32_t arg : section_[i].args) {
      last_use_[arg] = i;
      if (gathered_.erase(arg) > 0) bytes += bytes_of(arg);
    }
    if (bytes > 0) times_[i] += time_of(bytes);
  }
  // Parameters and gradients travel in buffers that hold several of them.
  void move_flat(const Instruction& one) {
    const auto whole = at(info(one.kind).whole);
    std::unordered_map<size_t, double> bytes;  // by computation
    for (size_t a = whole; a < one.args.size(); a += 2) {
      const Tensor& tensor = role_.tensor(one.args[a]);
      if (tensor.kind != BufferKind::kStep) continue;
      const bool is_parameter = !tensor.param.empty() || tensor.copy_of >= 0;
      if (!info(one.kind).adds && is_parameter && device_.copies.gathered)
        gathered_.insert(one.args[a]);
      const auto use = last_use_.find(one.args[a]);
      if (info(one.kind).adds && device_.copies.reduced && use != last_use_.end())
        bytes[use->second] += bytes_of(one.args[a]);
    }
    for (const auto& [i, of] : bytes) times_[i] += time_of(of);
  }
  // Returns how many runs of memory a part has in the whole.
  int64_t runs_of(const Instruction& one) const {
    if (!takes_pairs(one.kind) || info(one.kind).whole < 0) return 1;
    const Shape& shape = role_.tensor(one.args[at(info(one.kind).whole)]).type.shape;
    return std::accumulate(shape.begin(), shape.begin() + one.dim, one.outer, std::multiplies<>());
  }

  const ClusterDevice& device_;
  const RoleProgram& role_;
  const std::vector<Instruction>& section_;
  std::vector<double> times_;
  std::unordered_set<int32_t> gathered_;          // buffers that no computation has read
  std::unordered_map<int32_t, size_t> last_use_;  // by buffer: the computation
};

}  // namespace

std::vector<double> copy_times(const ClusterDevice& device, const RoleProgram& role,
                               const std::vector<Instruction>& section) {
  return Copies(device, role, section).run();
}

}  // namespace piper::cluster
