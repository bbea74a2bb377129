// A backend that runs nothing and counts what it was asked. What is left of a step is the executor
// itself; and it is the skeleton of a new backend.
#include "piper/devices/null.h"

#include <cstring>
#include <new>

#include "piper/base/memory.h"

namespace piper {
namespace {

struct AlignedFree {
  void operator()(std::byte* p) const { ::operator delete (p, std::align_val_t{kAlignment}); }
};

class NullBackend final : public Backend {
 public:
  explicit NullBackend(NullCounts* counts) : counts_(counts ? counts : &own_) {}
  std::string_view name() const override { return "null"; }

  bool runs(std::string_view) const override { return true; }
  // Memory is real: the executor's own copies and messages go through it.
  Result<std::byte*> allocate(int64_t bytes, Space) override {
    if (bytes < 0) return fail("cannot allocate {} bytes", bytes).with_code(ExitCode::kStorage);
    const auto size = static_cast<size_t>(align_up(bytes + 1));
    auto* p =
        static_cast<std::byte*>(::operator new (size, std::align_val_t{kAlignment}, std::nothrow));
    if (!p) return fail("cannot allocate {}", human_bytes(bytes)).with_code(ExitCode::kStorage);
    std::memset(p, 0, size);
    blocks_.emplace_back(p);
    return p;
  }

  Result<int32_t> load(const Program& program) override {
    num_args_.push_back(program.num_args);
    return static_cast<int32_t>(counts_->loads++);
  }

  int64_t workspace_bytes(int32_t) const override { return 0; }

  Result<int32_t> bind(int32_t program, std::span<std::byte* const> args, std::byte*) override {
    if (program < 0 || static_cast<size_t>(program) >= num_args_.size()) {
      return fail("no program {}", program);
    }
    if (args.size() != static_cast<size_t>(num_args_[program])) {
      return fail("{} arguments for {}", args.size(), num_args_[program]);
    }
    return static_cast<int32_t>(counts_->binds++);
  }

  void launch(int32_t, int32_t) override { ++counts_->launches; }
  void copy(std::byte*, const std::byte*, int64_t, int32_t) override { ++counts_->copies; }
  void fill(std::byte*, const TensorType&, double, int32_t) override { ++counts_->fills; }

 private:
  NullCounts own_;
  NullCounts* counts_;
  std::vector<int32_t> num_args_;
  std::vector<std::unique_ptr<std::byte, AlignedFree>> blocks_;
};

}  // namespace

std::unique_ptr<Backend> make_null_backend(NullCounts* counts) {
  return std::make_unique<NullBackend>(counts);
}

}  // namespace piper
