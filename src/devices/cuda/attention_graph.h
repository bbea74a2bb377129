// Graphs of cuDNN's backend API, as far as attention needs them: tensors of four dims, and
// products, reductions and pointwise operations on them, of which cuDNN makes one kernel or few.
#pragma once

#include <array>
#include <initializer_list>

#include "api.h"
#include "piper/base/base.h"

namespace piper::cuda {

// Owns a descriptor, freed with its owner. Errors say what was asked for and why cuDNN refused it.
class DnnObject {
 public:
  static Result<DnnObject> make(const Cudnn& api, DnnNumber kind);
  DnnObject(DnnObject&& other) noexcept;
  DnnObject& operator=(DnnObject&& other) noexcept;
  ~DnnObject();

  void* get() const { return object_; }
  Status set(DnnNumber attribute, DnnNumber type, int64_t count, const void* values) const;
  Status set(DnnNumber attribute, DnnNumber type, int value) const;
  Status set(DnnNumber attribute, const DnnObject& other) const;
  Status finish() const;

 private:
  DnnObject(const Cudnn& api, void* object) : api_(&api), object_(object) {}
  const Cudnn* api_;
  void* object_;
};

Status dnn_status(const Cudnn& api, int code, std::string_view call);

// Says what plans are made for: the device of a handle, or the properties of one that need not be
// there (cuDNN 9.8 and newer), which cuDNN writes and reads as JSON.
struct DnnTarget {
  DnnContext* handle = nullptr;
  const DnnObject* properties = nullptr;
};
Result<DnnObject> dnn_properties(const Cudnn& api, std::string_view text);

struct DnnPlan {
  DnnObject plan;
  int64_t workspace = 0;  // bytes, beside the graph's memory
};
// Packs addresses for a plan's tensors, by id.
Result<DnnObject> dnn_pack(const Cudnn& api, const std::vector<int64_t>& ids,
                           const std::vector<const void*>& addresses, void* workspace);

// The graph is built as data only; plan() makes cuDNN's objects of it.
class DnnGraph {
 public:
  using Tensor = size_t;
  using Dims = std::array<int64_t, 4>;

  // These add tensors: of memory, of what is made and read only inside (dense, unless steps are
  // given), and numbers.
  Tensor memory(const Dims& dims, const Dims& steps, DnnNumber type);
  Tensor inside(const Dims& dims, DnnNumber type = kDnnF32);
  Tensor inside(const Dims& dims, const Dims& steps, DnnNumber type);
  Tensor number(float value);
  Tensor whole_number(int32_t value);

  // Each makes `to`, and returns it.
  Tensor product(Tensor a, Tensor b, Tensor to);
  Tensor reduce(DnnNumber mode, Tensor x, Tensor to);
  Tensor view(Tensor x, Tensor to);  // the same memory under other dims
  Tensor index(int64_t axis, Tensor like, Tensor to);
  // Adds a pointwise operation of one operand, or two, or of two and what selects between them; of
  // i32 where `to` is.
  Tensor pointwise(DnnNumber mode, std::initializer_list<Tensor> operands, Tensor to);
  // Returns the adjoint of x, of which an operation was taken, from that of what it gave.
  Tensor pointwise_back(DnnNumber mode, Tensor adjoint, Tensor x, Tensor to);

  const Dims& dims(Tensor tensor) const { return tensors_[tensor].dims; }
  static int64_t id(Tensor tensor) { return static_cast<int64_t>(tensor) + 1; }
  // Returns the numbers' tensors, and where they are as long as the graph is not touched.
  std::vector<std::pair<Tensor, const void*>> numbers() const;

  // Returns the first of those that cuDNN's heuristics name that is deterministic and needs at most
  // so many bytes of workspace. Error: why there is none.
  Result<DnnPlan> plan(const Cudnn& api, const DnnTarget& target, int64_t most_workspace) const;

 private:
  struct TensorOf {
    enum Kind { kMemory, kInside, kNumber } kind;
    Dims dims, steps;
    DnnNumber type;
    std::array<std::byte, 4> value = {};
  };
  struct Op {
    DnnNumber kind;
    std::vector<std::pair<DnnNumber, Tensor>> operands;  // by attribute
    DnnNumber mode = kDnnAdd;
    int64_t axis = -1;
  };
  Tensor add(TensorOf tensor);
  Tensor add(Op op);
  Result<std::vector<DnnObject>> make_tensors(const Cudnn& api) const;
  Status make_ops(const Cudnn& api, const std::vector<DnnObject>& tensors,
                  std::vector<DnnObject>& described, std::vector<DnnObject>& ops) const;

  std::vector<TensorOf> tensors_;
  std::vector<Op> ops_;
};

}  // namespace piper::cuda
