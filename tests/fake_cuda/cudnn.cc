// cuDNN's backend API: descriptors keep what they are given, a plan is a copy of its graph, and
// running it goes from operation to operation in doubles, each result rounded to its tensor's type.
// Its one engine wants workspace, and overwrites it.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "elements.h"
#include "fake.h"

using namespace piper;            // NOLINT: what is called is all outside of namespaces
using namespace piper::fake;      // NOLINT
using namespace piper::emulator;  // NOLINT

namespace piper::cuda {
struct DnnContext : fake::Object {
  const char* kind() const override { return "context of cuDNN"; }
  CuStream* stream = nullptr;
};
}  // namespace piper::cuda

namespace {

enum DnnCode : int { kBadParameter = 2000, kNotSupported = 3000, kDnnInternal = 4000 };
constexpr int64_t kDnnWorkspace = 1000;

// ---- Plans --------------------------------------------------------------------------------------

struct Tensor {
  int64_t id = 0, dims[4] = {}, steps[4] = {};
  int type = 0;
  bool is_inside = false, is_number = false;

  int64_t count() const { return dims[0] * dims[1] * dims[2] * dims[3]; }
  // Where element i of the dims is, by the steps.
  int64_t place(int64_t i) const {
    int64_t at = 0;
    for (int d = 4; d-- > 0; i /= dims[d]) at += i % dims[d] * steps[d];
    return at;
  }
};
struct Op {
  int kind = 0, mode = 0;
  int64_t axis = 0;
  std::vector<size_t> operands;  // the last one is made
};
struct Plan {
  std::vector<Tensor> tensors;
  std::vector<Op> ops;
};

struct Descriptor : Object {
  const char* kind() const override { return "descriptor of cuDNN"; }
  int what = 0;
  bool is_finished = false;
  struct Values {
    int64_t count = 0;
    std::string bytes;
  };
  std::map<int, Values> values;  // by attribute
  std::shared_ptr<const Plan> plan;

  template <class T>
  T get(int attribute, T otherwise = {}, size_t index = 0) const {
    const auto found = values.find(attribute);
    if (found != values.end() && found->second.bytes.size() >= (index + 1) * sizeof(T))
      std::memcpy(&otherwise, found->second.bytes.data() + index * sizeof(T), sizeof(T));
    return otherwise;
  }
  Descriptor* other(int attribute, size_t index = 0) const {
    return static_cast<Descriptor*>(get<void*>(attribute, nullptr, index));
  }
  int64_t count(int attribute) const {
    const auto found = values.find(attribute);
    return found == values.end() ? 0 : found->second.count;
  }
};

size_t bytes_of_type(int type) {
  switch (type) {
    case kDnnTypeBool:
    case kDnnTypeChar:
      return 1;
    case kDnnTypeI64:
    case kDnnTypeHandle:
    case kDnnTypePointer:
    case kDnnTypeDescriptor:
      return 8;
    default:
      return 4;
  }
}

class PlanMaker {
 public:
  explicit PlanMaker(const Descriptor& graph) {
    for (int64_t i = 0; i < graph.count(kDnnGraphOps); ++i)
      add(*graph.other(kDnnGraphOps, static_cast<size_t>(i)));
  }
  std::shared_ptr<const Plan> take() { return std::make_shared<const Plan>(std::move(plan_)); }

 private:
  void add(const Descriptor& from) {
    Op op{from.what};
    if (const Descriptor* how = from.other(kDnnPointwiseOpMode)) {
      op.mode = how->get<int>(kDnnPointwiseMode);
      op.axis = how->get<int64_t>(kDnnPointwiseAxis);
    }
    if (const Descriptor* how = from.other(kDnnReductionOpMode))
      op.mode = how->get<int>(kDnnReductionMode);
    for (const int attribute :
         {kDnnProductA, kDnnProductB, kDnnProductC, kDnnReductionX, kDnnReductionY, kDnnReshapeX,
          kDnnReshapeY, kDnnPointwiseX, kDnnPointwiseB, kDnnPointwiseT, kDnnPointwiseY,
          kDnnPointwiseDy, kDnnPointwiseDx})
      if (const Descriptor* tensor = from.other(attribute))
        op.operands.push_back(index_of(*tensor));
    plan_.ops.push_back(std::move(op));
  }
  size_t index_of(const Descriptor& from) {
    const auto id = from.get<int64_t>(kDnnTensorId);
    for (size_t t = 0; t < plan_.tensors.size(); ++t)
      if (plan_.tensors[t].id == id) return t;
    Tensor made{id};
    for (size_t d = 0; d < 4; ++d) {
      made.dims[d] = from.get<int64_t>(kDnnTensorDims, 0, d);
      made.steps[d] = from.get<int64_t>(kDnnTensorSteps, 0, d);
    }
    made.type = from.get<int>(kDnnTensorType);
    made.is_inside = from.get<bool>(kDnnTensorInside);
    made.is_number = from.get<bool>(kDnnTensorByValue);
    plan_.tensors.push_back(made);
    return plan_.tensors.size() - 1;
  }
  Plan plan_;
};

// ---- Running ------------------------------------------------------------------------------------

std::optional<DType> element_type(int type) {
  if (type == kDnnI32) return DType::kI32;
  if (type == kDnnF32) return DType::kF32;
  if (type == kDnnF16) return DType::kF16;
  if (type == kDnnBF16) return DType::kBF16;
  return std::nullopt;
}

class PlanRun {
 public:
  PlanRun(State& state, const Plan& plan, const std::map<int64_t, uintptr_t>& addresses)
      : state_(state), plan_(plan), addresses_(addresses), values_(plan.tensors.size()) {}

  Status run() {
    for (const Op& op : plan_.ops) {
      const size_t to = op.operands.back();
      for (const size_t operand : op.operands)
        if (operand != to) PIPER_TRY(load(operand));
      values_[to].assign(static_cast<size_t>(plan_.tensors[to].count()), 0);
      PIPER_TRY(compute(op));
      PIPER_TRY(store(to));
    }
    return ok_status();
  }

 private:
  const Tensor& tensor(size_t t) const { return plan_.tensors[t]; }

  Status load(size_t t) {
    const Tensor& from = tensor(t);
    std::vector<double>& values = values_[t];
    if (!values.empty() || from.count() == 0) return ok_status();
    const auto at = addresses_.find(from.id);
    if (from.is_inside || at == addresses_.end()) return fail("tensor {} is made by none", from.id);
    const DType type = *element_type(from.type);
    for (int64_t i = 0; i < from.count(); ++i) {
      const uintptr_t element =
          at->second + static_cast<uintptr_t>(from.place(i) * info(type).bytes);
      if (!from.is_number) PIPER_TRY(touch(from, element, type, Access::kRead));
      values.push_back(load_number(type, reinterpret_cast<const char*>(element)));
    }
    return ok_status();
  }

  // What was made is rounded, and written where it is memory.
  Status store(size_t t) {
    const Tensor& to = tensor(t);
    const auto type = element_type(to.type);
    if (!type) return ok_status();
    char rounded[8];
    const auto at = addresses_.find(to.id);
    if (!to.is_inside && at == addresses_.end()) return fail("tensor {} is nowhere", to.id);
    for (int64_t i = 0; i < to.count(); ++i) {
      double& x = values_[t][static_cast<size_t>(i)];
      store_number(*type, x, rounded);
      x = load_number(*type, rounded);
      if (to.is_inside) continue;
      const uintptr_t element =
          at->second + static_cast<uintptr_t>(to.place(i) * info(*type).bytes);
      PIPER_TRY(touch(to, element, *type, Access::kWrite));
      std::memcpy(reinterpret_cast<void*>(element), rounded,
                  static_cast<size_t>(info(*type).bytes));
    }
    return ok_status();
  }

  Status touch(const Tensor& of, uintptr_t at, DType type, Access access) {
    if (!state_.range_of(at)) return fail("tensor {} of cuDNN: no memory of a device", of.id);
    const std::string wrong = state_.touch(at, static_cast<size_t>(info(type).bytes), access);
    if (!wrong.empty()) return fail("tensor {} of cuDNN: {}", of.id, wrong);
    return ok_status();
  }

  Status compute(const Op& op) {
    switch (op.kind) {
      case kDnnProductOp:
        return multiply(op);
      case kDnnReductionOp:
        return reduce(op);
      case kDnnReshapeOp:
        return view(op);
      case kDnnPointwiseOp:
        return pointwise(op);
    }
    return fail("an unknown operation of cuDNN");
  }

  // Heads of an operand that has fewer stand for as many of the others each.
  Status multiply(const Op& op) {
    const Tensor &a = tensor(op.operands[0]), &b = tensor(op.operands[1]),
                 &c = tensor(op.operands[2]);
    if (a.dims[3] != b.dims[2] || c.dims[2] != a.dims[2] || c.dims[3] != b.dims[3] ||
        c.dims[1] % a.dims[1] != 0 || c.dims[1] % b.dims[1] != 0 || a.dims[0] != b.dims[0])
      return fail("a product of cuDNN whose operands do not fit");
    const std::vector<double>&x = values_[op.operands[0]], &y = values_[op.operands[1]];
    std::vector<double>& to = values_[op.operands[2]];
    size_t at = 0;
    for (int64_t n = 0; n < c.dims[0]; ++n)
      for (int64_t h = 0; h < c.dims[1]; ++h) {
        const int64_t of_a = n * a.dims[1] + h / (c.dims[1] / a.dims[1]);
        const int64_t of_b = n * b.dims[1] + h / (c.dims[1] / b.dims[1]);
        for (int64_t i = 0; i < c.dims[2]; ++i)
          for (int64_t j = 0; j < c.dims[3]; ++j, ++at)
            for (int64_t k = 0; k < a.dims[3]; ++k)
              to[at] += x[static_cast<size_t>((of_a * a.dims[2] + i) * a.dims[3] + k)] *
                        y[static_cast<size_t>((of_b * b.dims[2] + k) * b.dims[3] + j)];
      }
    return ok_status();
  }

  // The element of `to` that one of `from` belongs to: groups of neighbours become one.
  static size_t into(const Tensor& from, const Tensor& to, int64_t i) {
    int64_t at = 0, step = 1;
    for (int d = 4; d-- > 0; i /= from.dims[d], step *= to.dims[d])
      at += i % from.dims[d] / (from.dims[d] / to.dims[d]) * step;
    return static_cast<size_t>(at);
  }

  // A softmax that goes along a row by tiles is lost where the first one has nothing but -∞: so is
  // a greatest number here.
  Status reduce(const Op& op) {
    constexpr int64_t kTile = 4;
    const Tensor &x = tensor(op.operands[0]), &y = tensor(op.operands[1]);
    std::vector<double>& to = values_[op.operands[1]];
    if (op.mode == kDnnReduceMax) std::fill(to.begin(), to.end(), -INFINITY);
    for (int64_t i = 0; i < x.count(); ++i) {
      const double from = values_[op.operands[0]][static_cast<size_t>(i)];
      double& at = to[into(x, y, i)];
      at = op.mode == kDnnReduceMax ? std::max(at, from) : at + from;
      const bool ends_tile = i % x.dims[3] == std::min(kTile, x.dims[3]) - 1;
      if (ends_tile && op.mode == kDnnReduceMax && at == -INFINITY) at = NAN;
    }
    return ok_status();
  }

  // The same memory, by other steps.
  Status view(const Op& op) {
    const Tensor &x = tensor(op.operands[0]), &y = tensor(op.operands[1]);
    std::map<int64_t, double> memory;
    for (int64_t i = 0; i < x.count(); ++i)
      memory[x.place(i)] = values_[op.operands[0]][static_cast<size_t>(i)];
    for (int64_t i = 0; i < y.count(); ++i) {
      const auto found = memory.find(y.place(i));
      if (found == memory.end()) return fail("a view of cuDNN that reaches elsewhere");
      values_[op.operands[1]][static_cast<size_t>(i)] = found->second;
    }
    return ok_status();
  }

  // Engines of gradients, which view what they made by other steps, read the first term alone of a
  // row that is for all queries, as cuDNN 9.19 does.
  bool reads_first_alone(const Op& op, const Tensor& operand) const {
    const auto is_view = [](const Op& each) { return each.kind == kDnnReshapeOp; };
    const bool is_terms = op.mode == kDnnAdd && !operand.is_inside && operand.type != kDnnI32;
    return is_terms && operand.dims[2] == 1 && operand.dims[3] > 1 &&
           std::ranges::any_of(plan_.ops, is_view);
  }

  Status pointwise(const Op& op) {
    const size_t to = op.operands.back();
    const Tensor& y = tensor(to);
    for (int64_t i = 0; i < y.count(); ++i) {
      std::vector<double> x;
      for (size_t o = 0; o + 1 < op.operands.size(); ++o) {
        const Tensor& operand = tensor(op.operands[o]);
        size_t at = into(y, operand, i);
        if (reads_first_alone(op, operand)) at -= at % static_cast<size_t>(operand.dims[3]);
        x.push_back(values_[op.operands[o]][at]);
      }
      x.resize(3);
      int64_t index = i;
      for (int64_t d = 3; d > op.axis; --d) index /= y.dims[d];
      PIPER_ASSIGN(values_[to][static_cast<size_t>(i)],
                   result_of(op.mode, x, static_cast<double>(index % y.dims[op.axis])));
    }
    return ok_status();
  }
  static Result<double> result_of(int mode, const std::vector<double>& x, double index) {
    switch (mode) {
      case kDnnAdd:
        return x[0] + x[1];
      case kDnnSub:
        return x[0] - x[1];
      case kDnnMul:
        return x[0] * x[1];
      case kDnnDiv:
        return x[0] / x[1];
      case kDnnExp:
        return std::exp(x[0]);
      case kDnnLog:
        return std::log(x[0]);
      case kDnnTanh:
        return std::tanh(x[0]);
      case kDnnTanhBack:
        return x[1] * (1 - std::tanh(x[0]) * std::tanh(x[0]));
      case kDnnAtLeast:
        return x[0] >= x[1] ? 1.0 : 0.0;
      case kDnnSelect:
        return x[2] != 0 ? x[0] : x[1];
      case kDnnIndex:
        return index;
    }
    return fail("an unknown pointwise operation of cuDNN, {}", mode);
  }

  State& state_;
  const Plan& plan_;
  const std::map<int64_t, uintptr_t>& addresses_;
  std::vector<std::vector<double>> values_;
};

Status run_plan(State& state, const Plan& plan, const std::map<int64_t, uintptr_t>& addresses,
                uintptr_t workspace) {
  if (const std::string wrong = state.touch(workspace, kDnnWorkspace, Access::kWrite);
      !wrong.empty() || !state.range_of(workspace))
    return fail("the workspace of cuDNN: {}", wrong.empty() ? "no memory of a device" : wrong);
  std::memset(reinterpret_cast<void*>(workspace), 0xff, kDnnWorkspace);
  return PlanRun(state, plan, addresses).run();
}

Descriptor* descriptor(Call& call, void* object) {
  return call.state.check(call.name, static_cast<Descriptor*>(object));
}

}  // namespace

// Descriptions and plans are made without a device, as cuDNN does.
#define FAKE_DNN_CALL(name)                \
  Call call(#name, /*needs_start=*/false); \
  if (call.code != kOk) return kDnnInternal

extern "C" {

size_t cudnnGetVersion() { return 91900; }
void cudnnGetLastErrorString(char* text, size_t size) {
  if (size > 0) *text = 0;
}
const char* cudnnGetErrorString(int status) {
  return status == kBadParameter   ? "CUDNN_STATUS_BAD_PARAM"
         : status == kNotSupported ? "CUDNN_STATUS_NOT_SUPPORTED"
                                   : "CUDNN_STATUS_INTERNAL_ERROR";
}
int cudnnCreate(DnnContext** context) {
  FAKE_DNN_CALL(cudnnCreate);
  if (!current_context()) return kDnnInternal;
  *context = call.state.make<DnnContext>();
  return kOk;
}
int cudnnDestroy(DnnContext* context) {
  Call call("cudnnDestroy");
  if (!call.state.check(call.name, context)) return kBadParameter;
  context->is_alive = false;
  return kOk;
}
int cudnnSetStream(DnnContext* context, CuStream* stream) {
  FAKE_DNN_CALL(cudnnSetStream);
  if (!call.state.check(call.name, context) || !call.state.check(call.name, stream))
    return kBadParameter;
  context->stream = stream;
  return kOk;
}
int cudnnBackendCreateDescriptor(int kind, void** object) {
  FAKE_DNN_CALL(cudnnBackendCreateDescriptor);
  auto* made = call.state.make<Descriptor>();
  made->what = kind;
  *object = made;
  return kOk;
}
int cudnnBackendDestroyDescriptor(void* object) {
  Call call("cudnnBackendDestroyDescriptor");
  Descriptor* one = descriptor(call, object);
  if (!one) return kBadParameter;
  one->is_alive = false;
  return kOk;
}
int cudnnBackendSetAttribute(void* object, int attribute, int type, int64_t count,
                             const void* values) {
  FAKE_DNN_CALL(cudnnBackendSetAttribute);
  Descriptor* one = descriptor(call, object);
  if (!one || one->is_finished) return kBadParameter;
  for (int64_t i = 0; type == kDnnTypeDescriptor && i < count; ++i) {
    const Descriptor* other = descriptor(call, static_cast<void* const*>(values)[i]);
    if (!other || !other->is_finished) return kBadParameter;
  }
  one->values[attribute] = {count, std::string(static_cast<const char*>(values),
                                               static_cast<size_t>(count) * bytes_of_type(type))};
  return kOk;
}
int cudnnBackendFinalize(void* object) {
  FAKE_DNN_CALL(cudnnBackendFinalize);
  Descriptor* one = descriptor(call, object);
  if (!one || one->is_finished) return kBadParameter;
  if (one->what == kDnnPlan) one->plan = one->other(kDnnPlanChoice)->plan;
  one->is_finished = true;
  return kOk;
}
int cudnnBackendGetAttribute(void* const object, int attribute, int type, int64_t most,
                             int64_t* count, void* values) {
  FAKE_DNN_CALL(cudnnBackendGetAttribute);
  Descriptor* one = descriptor(call, object);
  if (!one || most < 0) return kBadParameter;
  *count = 0;
  if (attribute == kDnnHeuristicResults) {
    Descriptor* choice = descriptor(call, *static_cast<void**>(values));
    if (!choice) return kBadParameter;
    choice->plan = PlanMaker(*one->other(kDnnHeuristicGraph)).take();
    choice->is_finished = true;
    *count = 1;
  } else if (attribute == kDnnPlanWorkspace) {
    *static_cast<int64_t*>(values) = kDnnWorkspace;
    *count = 1;
  } else if (const auto found = one->values.find(attribute); found != one->values.end()) {
    *count = std::min(most, found->second.count);
    std::memcpy(values, found->second.bytes.data(), static_cast<size_t>(*count) * bytes_of_type(type));
  }
  return kOk;
}
int cudnnBackendExecute(DnnContext* context, void* plan, void* pack) {
  FAKE_DNN_CALL(cudnnBackendExecute);
  const Descriptor *what = descriptor(call, plan), *where = descriptor(call, pack);
  if (!call.state.check(call.name, context) || !what || !where || !what->plan) return kBadParameter;
  std::map<int64_t, uintptr_t> addresses;
  for (int64_t i = 0; i < where->count(kDnnPackIds); ++i) {
    const auto at = static_cast<size_t>(i);
    addresses[where->get<int64_t>(kDnnPackIds, 0, at)] =
        where->get<uintptr_t>(kDnnPackPointers, 0, at);
  }
  State& state = call.state;
  const int queued = state.queue(
      call.name, context->stream,
      [&state, graph = what->plan, addresses, at = where->get<uintptr_t>(kDnnPackWorkspace)] {
        return run_plan(state, *graph, addresses, at);
      });
  return queued == kOk ? static_cast<int>(kOk) : kDnnInternal;
}

}  // extern "C"
