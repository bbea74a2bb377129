// Loads plans without running them; piper-run --compile-only calls it to learn what ranks load.
#include "piper/runtime/job.h"

namespace piper {
namespace {

class NoData final : public BatchSource {
 public:
  Status read(int64_t, int, int64_t, int64_t, std::byte*) const override {
    return fail("a plan that is only loaded reads no data");
  }
  int64_t steps() const override { return 0; }
  int64_t tokens_per_step() const override { return 0; }
};

Status load_rank(const PlanSet& set, int64_t rank, Transport& transport, Backend& backend) {
  const auto role = static_cast<size_t>(set.role_of_rank[static_cast<size_t>(rank)]);
  PIPER_ASSIGN(const std::unique_ptr<Fabric> own,
               backend.make_fabric({transport.control(), set.roles[role], {}}));
  const NoData data;
  PIPER_TRY(Executor::load({.set = &set, .rank = rank, .data = &data, .graphs = false}, backend,
                           transport.control(), own ? *own : transport.fabric()));
  return ok_status();
}

}  // namespace

Status load_ranks(PlanSet set,
                  const std::function<Result<std::unique_ptr<Backend>>()>& make_backend) {
  for (RoleProgram& role : set.roles)
    for (Tensor& tensor : role.tensors) tensor.init.clear();
  const auto world = make_inproc_world(set.world(), {});
  for (int64_t rank = 0; rank < set.world(); ++rank) {
    PIPER_ASSIGN(const std::unique_ptr<Backend> backend, make_backend());
    PIPER_TRY(load_rank(set, rank, world->rank(rank), *backend));
  }
  return ok_status();
}

}  // namespace piper
