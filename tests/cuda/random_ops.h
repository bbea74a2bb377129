// Random graphs of ops that the cuda backend has: uses from the table of ops, and between them
// pointwise ops, reductions, norms, products and moves, so that kernels are joined in many ways.
#pragma once

#include <set>

#include "composed.h"
#include "piper/ir/signatures.h"

namespace piper::test {

// Several graphs in one program, evaluated op by op on the CPU, and beside that in f64: how far the
// two are apart says what rounding does to each value.
class RandomOps : public Written {
 public:
  explicit RandomOps(uint64_t seed) : Written(seed) {}

  void add_graph(uint64_t seed) {
    random_.seed(seed);
    seed_ = seed;
    pool_.clear();
    constexpr DType kTypes[] = {DType::kF32, DType::kF32, DType::kBF16, DType::kF16, DType::kF64};
    dtype_ = kTypes[below(std::size(kTypes))];
    const size_t first = types_.size();
    keep(fresh({dtype_, shape()}));
    if (below(2)) keep(fresh({dtype_, shape()}));
    for (size_t steps = 3 + below(9); steps > 0; --steps) step();
    show(first);
  }

  // The programs' results, and where they are among the arguments.
  const std::vector<int32_t>& shown() const { return shown_; }
  Program made() const { return program(shown_, over_); }
  std::vector<Bytes> arguments() const {
    std::vector<Bytes> data;
    for (size_t v = 0; v < types_.size(); ++v)
      if (is_input_[v]) data.push_back(bytes_[v]);
    data.resize(data.size() + shown_.size() - over_.size());
    return data;
  }
  std::vector<size_t> places() const {
    std::map<int32_t, size_t> of_inputs;
    for (size_t v = 0; v < types_.size(); ++v)
      if (is_input_[v]) of_inputs.emplace(static_cast<int32_t>(v), of_inputs.size());
    std::vector<size_t> places;
    size_t next = of_inputs.size();
    for (const int32_t value : shown_)
      places.push_back(over_.contains(value) ? of_inputs.at(over_.at(value)) : next++);
    return places;
  }
  // What is wrong with a result; empty: nothing.
  std::string difference(int32_t value, const Bytes& made) const;

 private:
  struct Known {
    TensorType wide;  // what it is in f64, if it is a float
    Bytes data;
    bool is_exact = true;  // every backend has the same bits
    double unit = 0;       // the roundoff of the narrowest type that it has been rounded to since
    double reach = 0;      // of f64, beside which nothing is wider: the greatest of all on its way
    double floor = 0;      // what is left of such a difference is at least off by this part of that
    uint64_t graph = 0;    // its seed
    int32_t op = -1;       // that made it
  };
  using Ids = std::vector<int32_t>;

  size_t below(size_t n) { return static_cast<size_t>(random_() % n); }
  bool one_in(size_t n) { return below(n) == 0; }
  const Shape& shape_of(int32_t v) const { return type(v).shape; }
  static int64_t count(const Shape& shape) { return num_elements(shape); }

  Shape shape() {
    static const Shape kShapes[] = {{4, 8},  {5, 7},    {2, 3, 8}, {3, 33},      {6, 16},   {40},
                                    {1, 24}, {2, 1, 5}, {},        {2, 2, 3, 4}, {130, 3},  {17, 1},
                                    {9, 64}, {3, 256},  {2, 1000}, {16, 16},     {4, 5, 6}, {1, 1}};
    return kShapes[below(std::size(kShapes))];
  }

  static bool is_float(DType type) { return info(type).is_float; }
  static double unit_of(DType type) {
    return type == DType::kBF16  ? 0x1p-7
           : type == DType::kF16 ? 0x1p-10
           : type == DType::kF32 ? 4e-6
                                 : 1e-14;
  }
  static TensorType widest(const TensorType& type) {
    return is_float(type.dtype) ? TensorType{DType::kF64, type.shape} : type;
  }

  // ---- Values -------------------------------------------------------------------------------

  void know(int32_t value, Known known) {
    known.graph = seed_;
    if (known_.size() <= at(value)) known_.resize(at(value) + 1);
    known_[at(value)] = std::move(known);
  }
  Known exact(int32_t value) const {
    const TensorType wide = widest(type(value));
    const bool same = wide == type(value);
    return {wide,
            same ? bytes_[at(value)] : cast_bytes(type(value), bytes_[at(value)], wide.dtype)};
  }
  int32_t fresh(const TensorType& type, double low = -2, double high = 2, int64_t int_high = 3) {
    Bytes data = to_bytes(draw(type, random_, low, high, int_high));
    const bool is_literal = type.bytes() <= 64 && type.bytes() > 0 && one_in(5);
    const int32_t value =
        is_literal ? literal(type, std::move(data)) : given(type, std::move(data));
    know(value, exact(value));
    return value;
  }
  int32_t number(DType dtype, double x) {
    const int32_t value = literal({dtype, {}}, to_bytes(Tensor{{dtype, {}}, {x}}));
    know(value, exact(value));
    return value;
  }
  // Values that later ops may read: finite ones that are known.
  void keep(int32_t value) {
    const Known& known = known_[at(value)];
    if (!is_float(type(value).dtype) || count(shape_of(value)) == 0) return;
    for (const double x : to_tensor(type(value), bytes_[at(value)]).values)
      if (!(std::abs(x) < 64)) return;
    for (const double x : to_tensor(known.wide, known.data).values)
      if (!(std::abs(x) < 64)) return;
    pool_.push_back(value);
  }
  void keep(const Ids& values) {
    for (const int32_t value : values) keep(value);
  }
  int32_t any() {
    const size_t back = std::min(below(pool_.size()), below(pool_.size()));
    return pool_[pool_.size() - 1 - back];
  }

  // ---- Ops ----------------------------------------------------------------------------------

  static bool is_exact(const OpDef& def) {
    static const std::set<std::string_view> kExact = {
        "Abs",    "Add",      "Cast",      "Ceil",
        "Concat", "Detach",   "Div",       "Dropout",
        "Expand", "Fill",     "Floor",     "Max",
        "Gather", "Min",      "GatherND",  "GatherElements",
        "Mul",    "Neg",      "Pad",       "Relu",
        "Round",  "Reshape",  "Sign",      "Reciprocal",
        "Slice",  "Sqrt",     "ReduceMax", "Sub",
        "TopK",   "Trilu",    "Unfold",    "ReduceMin",
        "Where",  "Transpose"};
    return kExact.contains(def.name) || def.elements != OpDef::Elements::kMade;
  }
  // A last bit of an operand may change all of the result.
  static bool jumps(const OpDef& def, const OpTypes& use) {
    static const std::set<std::string_view> kJump = {
        "Floor", "Ceil", "Round", "Sign", "Mod", "ReduceExtremeGrad", "TopK", "NextLossScale"};
    if (kJump.contains(def.name)) return true;
    for (const TensorType& output : use.outputs)
      if (!is_float(output.dtype)) return true;
    return false;
  }

  // What it makes; nothing where the op takes no such operands.
  Ids add(std::string_view name, const Ids& inputs, const Attrs& attrs = {}) {
    const OpDef& def = *find_op(name);
    OpTypes use{.inputs = {}, .present = {}, .outputs = {}, .attrs = attrs}, wide = use;
    bool all_exact = true;
    double unit = 0, reach = 0, floor = 0;
    std::vector<Bytes> data;
    for (const int32_t input : inputs) {
      const bool is_there = input >= 0;
      use.inputs.push_back(is_there ? type(input) : TensorType{});
      wide.inputs.push_back(is_there ? known_[at(input)].wide : TensorType{});
      data.push_back(is_there ? known_[at(input)].data : Bytes{});
      for (OpTypes* each : {&use, &wide}) each->present.push_back(is_there);
      if (!is_there) continue;
      all_exact = all_exact && known_[at(input)].is_exact;
      unit = std::max(unit, known_[at(input)].unit);
      if (is_float(type(input).dtype))
        for (const double x : to_tensor(type(input), bytes_[at(input)]).values)
          if (std::isfinite(x)) reach = std::max(reach, std::abs(x));
      reach = std::max(reach, known_[at(input)].reach);
      floor = std::max(floor, known_[at(input)].floor);
    }
    const auto types = def.types(use);
    if (!types) return {};
    use.outputs = *types;
    if (!check_use(name, use) || (!all_exact && jumps(def, use))) return {};
    for (const TensorType& output : use.outputs)
      if (count(output.shape) > 6000) return {};
    const Ids outputs = ops(name, inputs, attrs);
    const bool stays = all_exact && is_exact(def);
    std::optional<std::vector<Bytes>> shadow;
    if (!stays) shadow = evaluate_wide(def, wide, data);
    for (size_t o = 0; o < outputs.size(); ++o) {
      Known known = exact(outputs[o]);
      known.op = static_cast<int32_t>(ops_.size()) - 1;
      if (is_float(use.outputs[o].dtype) && !stays) {
        known.is_exact = false;
        known.reach = reach;
        known.floor = std::max(floor, use.outputs[o].dtype == DType::kF64 ? 4e-14 : 3e-7);
        known.unit = std::max(unit, unit_of(use.outputs[o].dtype));
        for (const TensorType& input : use.inputs)
          if (is_float(input.dtype) && !all_exact) known.unit = std::max(known.unit, unit);
        if (shadow && (*shadow)[o].size == known.data.size) known.data = (*shadow)[o];
      }
      know(outputs[o], std::move(known));
    }
    return outputs;
  }
  static std::optional<std::vector<Bytes>> evaluate_wide(const OpDef& def, OpTypes& wide,
                                                         const std::vector<Bytes>& data) {
    if (def.draws >= 0) return std::nullopt;  // other numbers in f64
    for (const char* name : {"to", "dtype"})
      if (const std::string to = wide.attrs.text(name); to == "f32" || to == "bf16" || to == "f16")
        wide.attrs.set(name, "f64");
    const auto types = def.types(wide);
    if (!types) return std::nullopt;
    wide.outputs = *types;
    if (!check_use(def.name, wide)) return std::nullopt;
    auto made = evaluate_op(def.name, wide.attrs, wide.inputs, data, wide.outputs);
    if (!made) return std::nullopt;
    return *std::move(made);
  }
  int32_t first_of(const Ids& made, int32_t otherwise) {
    return made.empty() ? otherwise : made[0];
  }
  // Into [low, high].
  int32_t clamped(int32_t x, double low, double high) {
    const DType dtype = type(x).dtype;
    x = first_of(add("Max", {x, number(dtype, low)}), x);
    return first_of(add("Min", {x, number(dtype, high)}), x);
  }
  int32_t reshaped(int32_t x, const Shape& shape) {
    return first_of(add("Reshape", {x}, {{"shape", shape}}), x);
  }
  int32_t as(int32_t x, DType dtype) {
    if (type(x).dtype == dtype) return x;
    return first_of(add("Cast", {x}, {{"to", info(dtype).name}}), x);
  }

  // ---- Steps --------------------------------------------------------------------------------

  void step() {
    if (pool_.empty()) keep(fresh({dtype_, shape()}));
    if (pool_.empty()) return;
    switch (below(16)) {
      case 0:
      case 1:
      case 2:
        return combine(any());
      case 3:
      case 4:
        return bend(any());
      case 5:
        return recast(any());
      case 6:
      case 7:
        return move(any());
      case 8:
        return reduce(any());
      case 9:
      case 10:
        return normalise(any());
      case 11:
        return multiply(any());
      case 12:
        return choose(any());
      default:
        return take_from_table();
    }
  }
  // Something that may be broadcast against x, or x against it.
  int32_t partner(int32_t x) {
    if (!one_in(3))
      for (int tries = 0; tries < 4; ++tries) {
        const int32_t other = any();
        if (type(other).dtype == type(x).dtype && shape_of(other) == shape_of(x)) return other;
      }
    Shape shape = shape_of(x);
    for (int64_t& dim : shape)
      if (one_in(3)) dim = 1;
    if (!shape.empty() && one_in(2))
      shape.erase(shape.begin(), shape.begin() + static_cast<int64_t>(below(shape.size() + 1)));
    return fresh({type(x).dtype, shape});
  }
  void combine(int32_t x) {
    static const char* const kOps[] = {"Add", "Add", "Sub", "Mul", "Mul", "Max", "Min", "Div"};
    const char* const op = kOps[below(std::size(kOps))];
    int32_t with = partner(x);
    if (*op == 'D') with = clamped(with, 0.5, 2);
    if (one_in(3)) std::swap(x, with);
    if (*op == 'D') with = clamped(with, 0.5, 2);
    keep(add(op, {x, with}));
  }
  void bend(int32_t x) {
    struct Unary {
      const char* op;
      double low, high;
    };
    static const Unary kOps[] = {
        {"Neg", -9, 9},      {"Abs", -9, 9},     {"Relu", -9, 9},   {"Exp", -5, 3},
        {"Tanh", -9, 9},     {"Sigmoid", -9, 9}, {"Silu", -9, 9},   {"Gelu", -9, 9},
        {"Erf", -3, 3},      {"Sin", -4, 4},     {"Cos", -4, 4},    {"Sqrt", 0.25, 9},
        {"Log", 0.25, 9},    {"Floor", -9, 9},   {"Round", -9, 9},  {"Sign", -9, 9},
        {"Softplus", -9, 9}, {"Atan", -9, 9},    {"Detach", -9, 9}, {"Reciprocal", 0.25, 9}};
    const Unary& unary = kOps[below(std::size(kOps))];
    if (unary.low > 0 || *unary.op == 'E') x = clamped(x, unary.low, unary.high);
    const bool by_tanh = std::string_view(unary.op) == "Gelu" && one_in(2);
    keep(add(unary.op, {x}, by_tanh ? Attrs{{"approximate", "tanh"}} : Attrs{}));
  }
  void recast(int32_t x) {
    constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kF64};
    const int32_t other = as(x, kTypes[below(4)]);
    keep(other);
    if (one_in(2)) keep(as(other, type(x).dtype));
  }
  void move(int32_t x) {
    const Shape shape = shape_of(x);
    const size_t rank = shape.size();
    const size_t axis = rank > 0 ? below(rank) : 0;
    switch (rank == 0 ? 0 : below(6)) {
      case 0: {
        const int64_t n = count(shape);
        Shape to;
        int64_t left = n;
        for (const int64_t d : {2, 3, 4, 5, 8})
          if (left % d == 0 && one_in(2)) to.push_back(d), left /= d;
        to.insert(to.begin() + static_cast<int64_t>(below(to.size() + 1)), left);
        return keep(reshaped(x, to));
      }
      case 1: {
        std::vector<int64_t> perm(rank);
        for (size_t d = 0; d < rank; ++d) perm[d] = static_cast<int64_t>(d);
        std::shuffle(perm.begin(), perm.end(), random_);
        return keep(add("Transpose", {x}, {{"perm", perm}}));
      }
      case 2: {
        Shape starts(rank, 0), ends = shape, steps(rank, 1);
        starts[axis] = static_cast<int64_t>(below(static_cast<size_t>(shape[axis])));
        ends[axis] = starts[axis] + 1 +
                     static_cast<int64_t>(below(static_cast<size_t>(shape[axis] - starts[axis])));
        if (one_in(4)) steps[axis] = 2;
        return keep(add("Slice", {x}, {{"starts", starts}, {"ends", ends}, {"steps", steps}}));
      }
      case 3: {
        Shape other = shape;
        other[axis] = 1 + static_cast<int64_t>(below(4));
        Ids parts{x, one_in(2) ? partner(x) : fresh({type(x).dtype, other})};
        if (one_in(3)) std::reverse(parts.begin(), parts.end());
        if (one_in(3)) parts.push_back(x);
        return keep(add("Concat", parts, {{"axis", static_cast<int64_t>(axis)}}));
      }
      case 4: {
        Shape to = shape;
        if (one_in(2)) to.insert(to.begin(), 1 + static_cast<int64_t>(below(3)));
        for (int64_t& dim : to)
          if (dim == 1) dim = 1 + static_cast<int64_t>(below(4));
        return keep(add("Expand", {x}, {{"shape", to}}));
      }
      default: {
        Shape before(rank, 0), after(rank, 0);
        before[axis] = static_cast<int64_t>(below(3)), after[axis] = static_cast<int64_t>(below(3));
        return keep(add("Pad", {x},
                        {{"before", before}, {"after", after}, {"value", one_in(2) ? 0.0 : 1.5}}));
      }
    }
  }
  void reduce(int32_t x) {
    static const char* const kOps[] = {"ReduceSum", "ReduceSum", "ReduceMax", "ReduceMin"};
    Shape axes;
    for (size_t d = 0; d < shape_of(x).size(); ++d)
      if (one_in(2)) axes.push_back(static_cast<int64_t>(d));
    if (axes.empty()) return;
    const Ids made =
        add(kOps[below(4)], {x}, {{"axes", axes}, {"keepdims", static_cast<int64_t>(below(2))}});
    keep(made);
    if (!made.empty() && one_in(2)) keep(add(one_in(2) ? "Add" : "Mul", {x, made[0]}));
  }
  void normalise(int32_t x) {
    const Shape shape = shape_of(x);
    if (shape.empty()) return bend(x);
    const auto last = static_cast<int64_t>(shape.size()) - 1;
    const Attrs axis{{"axis", one_in(4) ? static_cast<int64_t>(below(shape.size())) : last}};
    const DType dtype = type(x).dtype;
    const Attrs with_epsilon{{"axis", last}, {"epsilon", 1e-3}};
    const int32_t scale = fresh({dtype, {shape.back()}}, 0.5, 2);
    switch (below(5)) {
      case 0: {
        const Ids p = add("Softmax", {x}, axis);
        keep(p);
        if (!p.empty() && one_in(2)) keep(add("SoftmaxGrad", {p[0], partner(p[0])}, axis));
        return;
      }
      case 1: {
        const Ids p = add("LogSoftmax", {x}, axis);
        keep(p);
        if (!p.empty() && one_in(2)) keep(add("LogSoftmaxGrad", {p[0], partner(p[0])}, axis));
        return;
      }
      case 2: {
        Ids inputs{x, scale};
        if (one_in(2)) inputs.push_back(fresh({dtype, {shape.back()}}));
        const Ids made = add("LayerNorm", inputs, with_epsilon);
        keep(made);
        if (made.size() < 3 || one_in(2)) return;
        const int32_t dy = fresh(type(x));
        keep(add("LayerNormGradX", {dy, x, scale, made[1], made[2]}, {{"axis", last}}));
        return keep(add("LayerNormGradParams", {dy, x, made[1], made[2]}, {{"axis", last}}));
      }
      default: {
        const Ids made = add("RmsNorm", {x, scale}, with_epsilon);
        keep(made);
        if (made.size() < 2 || one_in(2)) return;
        const int32_t dy = fresh(type(x));
        keep(add("RmsNormGradX", {dy, x, scale, made[1]}, {{"axis", last}}));
        return keep(add("RmsNormGradScale", {dy, x, made[1]}, {{"axis", last}}));
      }
    }
  }
  void multiply(int32_t x) {
    const Shape shape = shape_of(x);
    if (shape.size() < 2) return combine(x);
    const DType dtype = type(x).dtype;
    const int64_t n = shape.back();
    constexpr int64_t kWidths[] = {1, 4, 8, 12, 16, 33};
    const int64_t to = kWidths[below(6)];
    const bool trans = one_in(2);
    const int32_t weight = fresh({dtype, trans ? Shape{to, n} : Shape{n, to}}, -0.5, 0.5);
    Attrs attrs;
    if (trans) attrs.set("trans_b", int64_t{1});
    if (one_in(2)) {
      if (one_in(3)) attrs.set("activation", one_in(2) ? "gelu" : "gelu_tanh");
      return keep(add("Linear", {x, weight, fresh({dtype, {to}})}, attrs));
    }
    const Ids y = add("MatMul", {x, weight}, attrs);
    keep(y);
    if (y.empty() || one_in(2)) return;
    const Ids sum = add("Add", {y[0], fresh({dtype, {to}})});  // a bias, and what comes behind
    keep(sum);
    if (!sum.empty() && one_in(2)) bend(sum[0]);
  }
  void choose(int32_t x) {
    const int32_t other = partner(x);
    Ids condition = add(one_in(2) ? "Less" : "GreaterOrEqual", {x, other});
    if (condition.empty()) condition = {fresh({DType::kBool, shape_of(x)})};
    const Ids made = add("Where", {condition[0], x, partner(x)});
    keep(made);
    if (one_in(2)) keep(add("Cast", {condition[0]}, {{"to", info(dtype_).name}}));
  }

  // A use of any op of the table, some of whose operands are made of what is there.
  void take_from_table() {
    static const std::vector<std::string> names = cuda_ops();
    const OpDef* def = find_op(names[below(names.size())]);
    if (!def || def->samples.empty()) return;
    const OpSample& sample = def->samples[below(def->samples.size())];
    Attrs attrs = sample.attrs;
    for (const char* name : {"to", "dtype"})
      if (attrs.text(name) == "f64") attrs.set(name, info(dtype_).name);
    Ids inputs;
    for (size_t i = 0; i < sample.inputs.size(); ++i) {
      if (std::count(sample.absent.begin(), sample.absent.end(), static_cast<int>(i)) > 0) {
        inputs.push_back(-1);
        continue;
      }
      TensorType of = sample.inputs[i];
      const bool takes_any = of.dtype == DType::kF64;
      if (takes_any) of.dtype = dtype_;
      const bool fits = takes_any && count(of.shape) > 0 && !one_in(3) && !pool_.empty();
      inputs.push_back(fits ? fitted(any(), of, sample.low, sample.high)
                            : fresh(of, sample.low, sample.high, sample.int_high));
    }
    keep(add(def->name, inputs, attrs));
  }
  // Elements of x, repeated or left out, as that type, in [low, high].
  int32_t fitted(int32_t x, const TensorType& of, double low, double high) {
    const int64_t have = count(shape_of(x)), want = count(of.shape);
    if (one_in(2)) x = as(x, of.dtype);
    int32_t flat = reshaped(x, {have});
    if (have < want) {
      const int64_t times = (want + have - 1) / have;
      const int32_t rows = reshaped(flat, {1, have});
      flat = reshaped(first_of(add("Expand", {rows}, {{"shape", Shape{times, have}}}), rows),
                      {times * have});
    }
    const int64_t all = count(shape_of(flat));
    if (all > want) {
      const auto begin = static_cast<int64_t>(below(static_cast<size_t>(all - want + 1)));
      flat = first_of(
          add("Slice", {flat},
              {{"starts", Shape{begin}}, {"ends", Shape{begin + want}}, {"steps", Shape{1}}}),
          flat);
    }
    return clamped(as(reshaped(flat, of.shape), of.dtype), low, high);
  }

  // ---- Results ------------------------------------------------------------------------------

  bool is_read(int32_t value) const {
    for (const ProgramOp& op : ops_)
      if (std::count(op.inputs.begin(), op.inputs.end(), value) > 0) return true;
    return false;
  }
  // What nobody reads is a result, and some of the rest.
  void show(size_t first) {
    for (size_t v = first; v < types_.size(); ++v) {
      const auto value = static_cast<int32_t>(v);
      const Known& known = known_[v];
      if (known.op < 0 || type(value).bytes() == 0) continue;
      const bool is_last = !is_read(value);
      if (is_last ? one_in(6) : !one_in(4)) continue;
      shown_.push_back(value);
      if (one_in(3)) write_over(value, first);
    }
  }
  // Over an input that is not read after it, and by its op only where that may be.
  void write_over(int32_t value, size_t first) {
    const auto maker = static_cast<size_t>(known_[at(value)].op);
    const ProgramOp& op = ops_[maker];
    const OpDef& def = *find_op(op.op);
    for (size_t v = first; v < types_.size(); ++v) {
      const auto input = static_cast<int32_t>(v);
      if (!is_input_[v] || !(type(input) == type(value)) || taken_.contains(input)) continue;
      bool is_free = true;
      for (size_t o = maker + 1; o < ops_.size() && is_free; ++o)
        is_free = std::count(ops_[o].inputs.begin(), ops_[o].inputs.end(), input) == 0;
      for (size_t i = 0; i < op.inputs.size() && is_free; ++i) {
        if (op.inputs[i] != input) continue;
        bool may = false;
        for (const auto& [result, operand] : def.in_place)
          may |= op.outputs[static_cast<size_t>(result)] == value && operand == static_cast<int>(i);
        is_free = may;
      }
      if (!is_free) continue;
      over_.emplace(value, input);
      taken_.insert(input);
      return;
    }
  }
  // How it came about, the last op first.
  std::string history(int32_t value) const;

  uint64_t seed_ = 0;
  DType dtype_ = DType::kF32;
  std::vector<Known> known_;
  Ids pool_, shown_;
  std::map<int32_t, int32_t> over_;
  std::set<int32_t> taken_;
};

inline std::string RandomOps::history(int32_t value) const {
  std::set<int32_t> wanted{value};
  std::string text;
  const auto name = [&](int32_t v) {
    if (v < 0) return std::string("-");
    return fmt::format("v{} {}{}{}", v, to_string(type(v)), is_input_[at(v)] ? " input" : "",
                       over_.contains(v) ? fmt::format(" over v{}", over_.at(v)) : "");
  };
  for (size_t o = ops_.size(); o-- > 0;) {
    const ProgramOp& op = ops_[o];
    bool is_wanted = false;
    for (const int32_t output : op.outputs) is_wanted |= wanted.contains(output);
    if (!is_wanted) continue;
    std::vector<std::string> in, out;
    for (const int32_t input : op.inputs) in.push_back(name(input)), wanted.insert(input);
    for (const int32_t output : op.outputs) out.push_back(name(output));
    text += fmt::format("  {} = {} {}({})\n", join(out, ", "), op.op, print_attrs(op.attrs),
                        join(in, ", "));
  }
  return text;
}

inline std::string RandomOps::difference(int32_t value, const Bytes& made) const {
  const Bytes& wanted = bytes_[at(value)];
  const TensorType& of = type(value);
  if (made.size == wanted.size && std::memcmp(made.data, wanted.data, made.size) == 0) return "";
  const Known& known = known_[at(value)];
  const Tensor a = to_tensor(of, made), e = to_tensor(of, wanted);
  const Tensor wide = to_tensor(known.wide, known.data);
  double scale = 1e-30, rounding = 0;
  for (size_t i = 0; i < e.values.size(); ++i) {
    if (std::isfinite(e.values[i])) scale = std::max(scale, std::abs(e.values[i]));
    if (std::isfinite(e.values[i] - wide.values[i]))
      rounding = std::max(rounding, std::abs(e.values[i] - wide.values[i]));
  }
  const double bound =
      known.is_exact ? 0 : 8 * rounding + 2 * known.unit * scale + known.floor * known.reach;
  for (size_t i = 0; i < e.values.size(); ++i) {
    const double x = a.values[i], y = e.values[i];
    if ((x == y && std::signbit(x) == std::signbit(y)) || (std::isnan(x) && std::isnan(y)))
      continue;
    if (!known.is_exact && std::abs(x - y) <= bound) continue;
    return fmt::format("graph of seed {}, v{} element {}: {} is not {} (bound {}, in f64 {})\n{}",
                       known.graph, value, i, x, y, bound, wide.values[i], history(value));
  }
  return "";
}

}  // namespace piper::test
