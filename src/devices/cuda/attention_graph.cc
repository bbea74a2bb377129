// Builds graphs of cuDNN's backend interface from tensors and operations.
#include "attention_graph.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace piper::cuda {
namespace {

// Tensors of memory begin at multiples of so many bytes; those of 32 bits may begin at any element.
int64_t alignment_of(DnnNumber type) { return type == kDnnF32 || type == kDnnI32 ? 4 : 16; }

}  // namespace

Status dnn_status(const Cudnn& api, int code, std::string_view call) {
  if (code == 0) return ok_status();
  char text[512] = {};
  api.cudnnGetLastErrorString(text, sizeof text);
  return fail("{}: error {}{}{}", call, code, *text ? ": " : "", text);
}

// ---- Descriptors --------------------------------------------------------------------------------

Result<DnnObject> DnnObject::make(const Cudnn& api, DnnNumber kind) {
  void* object = nullptr;
  PIPER_TRY(dnn_status(api, api.cudnnBackendCreateDescriptor(kind, &object),
                       fmt::format("cudnnBackendCreateDescriptor({})", int{kind})));
  return DnnObject(api, object);
}
DnnObject::DnnObject(DnnObject&& other) noexcept
    : api_(other.api_), object_(std::exchange(other.object_, nullptr)) {}
DnnObject& DnnObject::operator=(DnnObject&& other) noexcept {
  std::swap(api_, other.api_), std::swap(object_, other.object_);
  return *this;
}
DnnObject::~DnnObject() {
  if (object_) api_->cudnnBackendDestroyDescriptor(object_);
}
Status DnnObject::set(DnnNumber attribute, DnnNumber type, int64_t count,
                      const void* values) const {
  return dnn_status(*api_, api_->cudnnBackendSetAttribute(object_, attribute, type, count, values),
                    fmt::format("cudnnBackendSetAttribute({})", int{attribute}));
}
Status DnnObject::set(DnnNumber attribute, DnnNumber type, int value) const {
  return set(attribute, type, 1, &value);
}
Status DnnObject::set(DnnNumber attribute, const DnnObject& other) const {
  return set(attribute, kDnnTypeDescriptor, 1, &other.object_);
}
Status DnnObject::finish() const {
  return dnn_status(*api_, api_->cudnnBackendFinalize(object_), "cudnnBackendFinalize");
}

Result<DnnObject> dnn_properties(const Cudnn& api, std::string_view text) {
  PIPER_ASSIGN(DnnObject properties, DnnObject::make(api, kDnnProperties));
  PIPER_TRY(properties.set(kDnnPropertiesText, kDnnTypeChar, std::ssize(text), text.data()));
  PIPER_TRY(properties.finish());
  return properties;
}

Result<DnnObject> dnn_pack(const Cudnn& api, const std::vector<int64_t>& ids,
                           const std::vector<const void*>& addresses, void* workspace) {
  PIPER_ASSIGN(DnnObject pack, DnnObject::make(api, kDnnPack));
  PIPER_TRY(pack.set(kDnnPackIds, kDnnTypeI64, std::ssize(ids), ids.data()));
  PIPER_TRY(pack.set(kDnnPackPointers, kDnnTypePointer, std::ssize(addresses), addresses.data()));
  PIPER_TRY(pack.set(kDnnPackWorkspace, kDnnTypePointer, 1, &workspace));
  PIPER_TRY(pack.finish());
  return pack;
}

// ---- What is built ------------------------------------------------------------------------------

DnnGraph::Tensor DnnGraph::add(TensorOf tensor) {
  tensors_.push_back(tensor);
  return tensors_.size() - 1;
}
DnnGraph::Tensor DnnGraph::memory(const Dims& dims, const Dims& steps, DnnNumber type) {
  return add({TensorOf::kMemory, dims, steps, type});
}
DnnGraph::Tensor DnnGraph::inside(const Dims& dims, const Dims& steps, DnnNumber type) {
  return add({TensorOf::kInside, dims, steps, type});
}
DnnGraph::Tensor DnnGraph::inside(const Dims& dims, DnnNumber type) {
  return inside(dims, {dims[1] * dims[2] * dims[3], dims[2] * dims[3], dims[3], 1}, type);
}
DnnGraph::Tensor DnnGraph::number(float value) {
  return add({TensorOf::kNumber,
              {1, 1, 1, 1},
              {1, 1, 1, 1},
              kDnnF32,
              std::bit_cast<std::array<std::byte, 4>>(value)});
}
DnnGraph::Tensor DnnGraph::whole_number(int32_t value) {
  return add({TensorOf::kNumber,
              {1, 1, 1, 1},
              {1, 1, 1, 1},
              kDnnI32,
              std::bit_cast<std::array<std::byte, 4>>(value)});
}

DnnGraph::Tensor DnnGraph::add(Op op) {
  ops_.push_back(std::move(op));
  return ops_.back().operands.back().second;
}
DnnGraph::Tensor DnnGraph::product(Tensor a, Tensor b, Tensor to) {
  return add({kDnnProductOp, {{kDnnProductA, a}, {kDnnProductB, b}, {kDnnProductC, to}}});
}
DnnGraph::Tensor DnnGraph::reduce(DnnNumber mode, Tensor x, Tensor to) {
  return add({kDnnReductionOp, {{kDnnReductionX, x}, {kDnnReductionY, to}}, mode});
}
DnnGraph::Tensor DnnGraph::view(Tensor x, Tensor to) {
  return add({kDnnReshapeOp, {{kDnnReshapeX, x}, {kDnnReshapeY, to}}});
}
DnnGraph::Tensor DnnGraph::index(int64_t axis, Tensor like, Tensor to) {
  return add({kDnnPointwiseOp, {{kDnnPointwiseX, like}, {kDnnPointwiseY, to}}, kDnnIndex, axis});
}
DnnGraph::Tensor DnnGraph::pointwise(DnnNumber mode, std::initializer_list<Tensor> operands,
                                     Tensor to) {
  constexpr DnnNumber kPlaces[] = {kDnnPointwiseX, kDnnPointwiseB, kDnnPointwiseT};
  Op op{kDnnPointwiseOp, {}, mode};
  for (const Tensor operand : operands)
    op.operands.emplace_back(kPlaces[op.operands.size()], operand);
  op.operands.emplace_back(kDnnPointwiseY, to);
  return add(std::move(op));
}

DnnGraph::Tensor DnnGraph::pointwise_back(DnnNumber mode, Tensor adjoint, Tensor x, Tensor to) {
  return add({kDnnPointwiseOp,
              {{kDnnPointwiseX, x}, {kDnnPointwiseDy, adjoint}, {kDnnPointwiseDx, to}},
              mode});
}

std::vector<std::pair<DnnGraph::Tensor, const void*>> DnnGraph::numbers() const {
  std::vector<std::pair<Tensor, const void*>> all;
  for (Tensor t = 0; t < tensors_.size(); ++t)
    if (tensors_[t].kind == TensorOf::kNumber) all.emplace_back(t, tensors_[t].value.data());
  return all;
}

// ---- cuDNN's objects ----------------------------------------------------------------------------

Result<std::vector<DnnObject>> DnnGraph::make_tensors(const Cudnn& api) const {
  std::vector<DnnObject> made;
  for (Tensor t = 0; t < tensors_.size(); ++t) {
    const TensorOf& tensor = tensors_[t];
    PIPER_ASSIGN(DnnObject object, DnnObject::make(api, kDnnTensor));
    const int64_t unique = id(t), alignment = alignment_of(tensor.type);
    const bool is_inside = tensor.kind == TensorOf::kInside;
    const bool is_number = tensor.kind == TensorOf::kNumber;
    PIPER_TRY(object.set(kDnnTensorType, kDnnTypeDataType, tensor.type));
    PIPER_TRY(object.set(kDnnTensorDims, kDnnTypeI64, 4, tensor.dims.data()));
    PIPER_TRY(object.set(kDnnTensorSteps, kDnnTypeI64, 4, tensor.steps.data()));
    PIPER_TRY(object.set(kDnnTensorId, kDnnTypeI64, 1, &unique));
    PIPER_TRY(object.set(kDnnTensorAlignment, kDnnTypeI64, 1, &alignment));
    PIPER_TRY(object.set(kDnnTensorInside, kDnnTypeBool, 1, &is_inside));
    PIPER_TRY(object.set(kDnnTensorByValue, kDnnTypeBool, 1, &is_number));
    PIPER_TRY(object.finish());
    made.push_back(std::move(object));
  }
  return made;
}

namespace {

// Says what describes an operation apart from its operands: the attribute that takes it.
struct Described {
  DnnNumber op, kind, attribute, mode, mode_type, type;
};
constexpr Described kDescribed[] = {
    {kDnnProductOp, kDnnProduct, kDnnProductOpType, kDnnProductType, kDnnTypeDataType,
     kDnnProductType},
    {kDnnReductionOp, kDnnReduction, kDnnReductionOpMode, kDnnReductionMode, kDnnTypeReduction,
     kDnnReductionType},
    {kDnnPointwiseOp, kDnnPointwise, kDnnPointwiseOpMode, kDnnPointwiseMode, kDnnTypePointwise,
     kDnnPointwiseType},
};

// Numbers of tokens are made, added and compared as what they are; all else is computed in f32.
DnnNumber computed_in(DnnNumber mode, DnnNumber made) {
  return mode == kDnnAtLeast ? kDnnBool : made == kDnnI32 ? kDnnI32 : kDnnF32;
}

Result<DnnObject> describe(const Cudnn& api, const Described& how, DnnNumber mode, int64_t axis,
                           DnnNumber made) {
  PIPER_ASSIGN(DnnObject object, DnnObject::make(api, how.kind));
  const bool is_pointwise = how.op == kDnnPointwiseOp;
  if (how.op != kDnnProductOp) PIPER_TRY(object.set(how.mode, how.mode_type, mode));
  PIPER_TRY(
      object.set(how.type, kDnnTypeDataType, is_pointwise ? computed_in(mode, made) : kDnnF32));
  const bool is_same = true;  // bits in each run
  if (how.op == kDnnReductionOp)
    PIPER_TRY(object.set(kDnnReductionSame, kDnnTypeBool, 1, &is_same));
  if (axis >= 0) PIPER_TRY(object.set(kDnnPointwiseAxis, kDnnTypeI64, 1, &axis));
  PIPER_TRY(object.finish());
  return object;
}

Status set_target(const DnnObject& object, DnnNumber handle, DnnNumber properties,
                  const DnnTarget& target) {
  if (target.properties) return object.set(properties, *target.properties);
  return object.set(handle, kDnnTypeHandle, 1, &target.handle);
}

// Returns what the heuristics name, best first.
Result<std::vector<DnnObject>> choices_of(const Cudnn& api, const DnnObject& graph,
                                          const DnnTarget& target) {
  constexpr int64_t kMost = 16;
  PIPER_ASSIGN(DnnObject heuristic, DnnObject::make(api, kDnnHeuristic));
  PIPER_TRY(heuristic.set(kDnnHeuristicGraph, graph));
  PIPER_TRY(heuristic.set(kDnnHeuristicMode, kDnnTypeHeuristic, kDnnHeuristicA));
  if (target.properties) PIPER_TRY(heuristic.set(kDnnHeuristicProperties, *target.properties));
  PIPER_TRY(heuristic.finish());
  std::vector<DnnObject> choices;
  std::vector<void*> objects;
  for (int64_t i = 0; i < kMost; ++i) {
    PIPER_ASSIGN(DnnObject choice, DnnObject::make(api, kDnnChoice));
    objects.push_back(choice.get());
    choices.push_back(std::move(choice));
  }
  int64_t count = 0;
  PIPER_TRY(
      dnn_status(api,
                 api.cudnnBackendGetAttribute(heuristic.get(), kDnnHeuristicResults,
                                              kDnnTypeDescriptor, kMost, &count, objects.data()),
                 fmt::format("cudnnBackendGetAttribute({})", int{kDnnHeuristicResults})));
  while (std::ssize(choices) > count) choices.pop_back();
  return choices;
}

Result<bool> is_deterministic(const Cudnn& api, const DnnObject& choice) {
  PIPER_ASSIGN(const DnnObject engine, DnnObject::make(api, kDnnEngine));
  void* object = engine.get();
  int64_t count = 0;
  PIPER_TRY(dnn_status(api,
                       api.cudnnBackendGetAttribute(choice.get(), kDnnChoiceEngine,
                                                    kDnnTypeDescriptor, 1, &count, &object),
                       fmt::format("cudnnBackendGetAttribute({})", int{kDnnChoiceEngine})));
  int notes[kDnnNotes] = {};
  PIPER_TRY(dnn_status(api,
                       api.cudnnBackendGetAttribute(engine.get(), kDnnEngineNotes, kDnnTypeNote,
                                                    kDnnNotes, &count, notes),
                       fmt::format("cudnnBackendGetAttribute({})", int{kDnnEngineNotes})));
  return std::count(notes, notes + count, int{kDnnNondeterministic}) == 0;
}

Result<DnnPlan> plan_of(const Cudnn& api, const DnnObject& choice, const DnnTarget& target) {
  PIPER_ASSIGN(DnnObject plan, DnnObject::make(api, kDnnPlan));
  PIPER_TRY(set_target(plan, kDnnPlanHandle, kDnnPlanProperties, target));
  PIPER_TRY(plan.set(kDnnPlanChoice, choice));
  PIPER_TRY(plan.finish());
  int64_t workspace = 0, count = 0;
  PIPER_TRY(dnn_status(api,
                       api.cudnnBackendGetAttribute(plan.get(), kDnnPlanWorkspace, kDnnTypeI64, 1,
                                                    &count, &workspace),
                       fmt::format("cudnnBackendGetAttribute({})", int{kDnnPlanWorkspace})));
  return DnnPlan{std::move(plan), workspace};
}

}  // namespace

Status DnnGraph::make_ops(const Cudnn& api, const std::vector<DnnObject>& tensors,
                          std::vector<DnnObject>& described, std::vector<DnnObject>& ops) const {
  for (const Op& op : ops_) {
    PIPER_ASSIGN(DnnObject object, DnnObject::make(api, op.kind));
    const auto* how = std::find_if(std::begin(kDescribed), std::end(kDescribed),
                                   [&](const Described& d) { return d.op == op.kind; });
    if (how != std::end(kDescribed)) {
      const DnnNumber type = tensors_[op.operands.back().second].type;
      PIPER_ASSIGN(DnnObject made, describe(api, *how, op.mode, op.axis, type));
      PIPER_TRY(object.set(how->attribute, made));
      described.push_back(std::move(made));
    }
    for (const auto& [attribute, tensor] : op.operands)
      PIPER_TRY(object.set(attribute, tensors[tensor]));
    PIPER_TRY(object.finish());
    ops.push_back(std::move(object));
  }
  return ok_status();
}

Result<DnnPlan> DnnGraph::plan(const Cudnn& api, const DnnTarget& target,
                               int64_t most_workspace) const {
  PIPER_ASSIGN(const std::vector<DnnObject> tensors, make_tensors(api));
  std::vector<DnnObject> described, ops;
  PIPER_TRY(make_ops(api, tensors, described, ops));
  PIPER_ASSIGN(DnnObject graph, DnnObject::make(api, kDnnGraph));
  std::vector<void*> objects;
  for (const DnnObject& op : ops) objects.push_back(op.get());
  PIPER_TRY(graph.set(kDnnGraphOps, kDnnTypeDescriptor, std::ssize(objects), objects.data()));
  if (target.handle) PIPER_TRY(graph.set(kDnnGraphHandle, kDnnTypeHandle, 1, &target.handle));
  PIPER_TRY(graph.finish());
  PIPER_ASSIGN(const std::vector<DnnObject> choices, choices_of(api, graph, target));
  std::string problem = "cuDNN's heuristics name no engine";
  for (const DnnObject& choice : choices) {
    PIPER_ASSIGN(const bool is_same, is_deterministic(api, choice));
    if (!is_same) {
      problem = "no engine of cuDNN is deterministic";
      continue;
    }
    Result<DnnPlan> made = plan_of(api, choice, target);
    if (made && made->workspace <= most_workspace) return made;
    problem = made ? fmt::format("cuDNN's engine needs {} bytes, more than {}", made->workspace,
                                 most_workspace)
                   : made.error().message;
  }
  return fail("{}", problem);
}

}  // namespace piper::cuda
