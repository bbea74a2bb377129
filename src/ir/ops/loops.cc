// Loop letters: the helpers that every op's rule is made with.
#include <algorithm>
#include <numeric>

#include "rules.h"

namespace piper {

namespace {
constexpr std::string_view kLetters =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
}

char LoopBuilder::letter(int64_t size) {
  PIPER_CHECK(rule.sizes.size() < kLetters.size(), "an op has more loops than there are letters");
  const char letter = kLetters[rule.sizes.size()];
  rule.sizes.emplace_back(letter, size);
  return letter;
}

char LoopBuilder::whole(int64_t size) {
  const char made = letter(size);
  mark_whole(made);
  return made;
}

void LoopBuilder::mark_whole(char letter) {
  if (rule.whole.find(letter) == std::string::npos) rule.whole.push_back(letter);
}

Dims LoopBuilder::letters(const Shape& shape) {
  Dims dims;
  for (int64_t extent : shape) dims.push_back({letter(extent)});
  return dims;
}

Dims LoopBuilder::whole_letters(const Shape& shape) {
  Dims dims;
  for (int64_t extent : shape) dims.push_back({whole(extent)});
  return dims;
}

Dims broadcast_dims(const Dims& dims, const Shape& shape, const Shape& operand) {
  Dims result;
  const size_t lead = shape.size() - operand.size();
  for (size_t d = 0; d < operand.size(); ++d) {
    const bool repeated = operand[d] == 1 && shape[lead + d] != 1;
    result.push_back(repeated ? Dim{} : dims[lead + d]);
  }
  return result;
}

LoopRule pointwise_loops(const OpTypes& use, std::vector<std::vector<int>> linear) {
  LoopBuilder build;
  const Shape& shape = use.outputs[0].shape;
  const Dims dims = build.letters(shape);
  for (size_t i = 0; i < use.inputs.size(); ++i) {
    build.rule.inputs.push_back(use.present[i] ? broadcast_dims(dims, shape, use.inputs[i].shape)
                                               : Dims{});
  }
  build.rule.outputs.assign(use.outputs.size(), dims);
  build.rule.linear = std::move(linear);
  return build.rule;
}

Dim block_letters(LoopBuilder& build, int64_t extent, int64_t unit) {
  if (extent == 0) return {build.whole(0)};
  const char count = build.whole(extent / unit);
  return {count, build.letter(unit)};
}

LoopRule whole_loops(const OpTypes& use) {
  LoopBuilder build;
  const char letter = build.whole(1);
  auto dims = [&](const Shape& shape) { return Dims(shape.size(), Dim{letter}); };
  for (size_t i = 0; i < use.inputs.size(); ++i) {
    build.rule.inputs.push_back(use.present[i] ? dims(use.inputs[i].shape) : Dims{});
  }
  for (const TensorType& type : use.outputs) build.rule.outputs.push_back(dims(type.shape));
  build.rule.reduces = LoopRule::kNone;
  return build.rule;
}

namespace {

// Reads one side of a reshape as its factors, from the outermost inwards.
struct FactorReader {
  const Shape& shape;
  Dims dims;
  size_t dim = 0;
  int64_t left = 1;  // what remains of the extent of `dim`
  explicit FactorReader(const Shape& s) : shape(s), dims(s.size()), left(s.empty() ? 1 : s[0]) {
    skip();
  }
  bool done() const { return dim == shape.size(); }
  void skip() {
    while (!done() && left == 1) {
      if (++dim < shape.size()) left = shape[dim];
    }
  }
  void take(char letter, int64_t size) {
    dims[dim].push_back(letter);
    left /= size;
    skip();
  }
};

}  // namespace

std::pair<Dims, Dims> common_letters(LoopBuilder& build, const Shape& from, const Shape& to) {
  if (num_elements(from) == 0) return {build.whole_letters(from), build.whole_letters(to)};
  FactorReader a(from), b(to);
  while (!a.done() && !b.done()) {
    const int64_t common = std::gcd(a.left, b.left);
    if (common > 1) {
      const char letter = build.letter(common);
      a.take(letter, common);
      b.take(letter, common);
      continue;
    }
    // The rest of both dims does not line up: its factors are whole letters, each side's own. What
    // follows lines up again from where equally many elements were read.
    int64_t read_a = a.left, read_b = b.left;
    a.take(build.whole(a.left), a.left);
    b.take(build.whole(b.left), b.left);
    while (read_a != read_b) {
      FactorReader& behind = read_a < read_b ? a : b;
      int64_t& read = read_a < read_b ? read_a : read_b;
      const int64_t other = std::max(read_a, read_b);
      // A factor of the dim may close the gap.
      const int64_t closing = other % read == 0 ? std::gcd(other / read, behind.left) : 1;
      const int64_t size = closing > 1 ? closing : behind.left;
      read *= size;
      behind.take(build.whole(size), size);
    }
  }
  return {a.dims, b.dims};
}

namespace {

// Returns the letters of one operand of a form, '.' replaced by those for `lead` leading dims
// (aligned to the right).
std::string form_letters(std::string_view text, size_t rank, size_t most_lead) {
  const bool dotted = !text.empty() && text[0] == '.';
  const std::string_view named = dotted ? text.substr(1) : text;
  PIPER_CHECK(dotted ? rank >= named.size() : rank == named.size(),
              "operand of rank {} does not have the form '{}'", rank, text);
  const size_t lead = rank - named.size();
  std::string letters;
  for (size_t i = 0; i < lead; ++i)
    letters.push_back(static_cast<char>('A' + most_lead - lead + i));
  letters.append(named);
  return letters;
}

struct Form {
  std::vector<std::string> inputs, outputs;
};

Form parse_form(std::string_view text) {
  const size_t arrow = text.find("->");
  PIPER_CHECK(arrow != std::string_view::npos, "form '{}' has no arrow", text);
  return {split_text(text.substr(0, arrow), ','), split_text(text.substr(arrow + 2), ',')};
}

}  // namespace

LoopRule loops(std::string_view text, const std::vector<Shape>& inputs,
               const std::vector<Shape>& outputs) {
  const Form form = parse_form(text);
  PIPER_CHECK(form.inputs.size() == inputs.size() && form.outputs.size() == outputs.size(),
              "form '{}' is for other operands", text);
  size_t most_lead = 0;
  auto measure = [&](const std::string& letters, const Shape& shape) {
    if (letters.empty() || letters[0] != '.') return;
    most_lead = std::max(most_lead, shape.size() + 1 - letters.size());
  };
  for (size_t i = 0; i < inputs.size(); ++i) measure(form.inputs[i], inputs[i]);
  for (size_t i = 0; i < outputs.size(); ++i) measure(form.outputs[i], outputs[i]);
  LoopRule rule;
  auto size_of = [&](char letter) -> int64_t& {
    for (auto& [known, size] : rule.sizes) {
      if (known == letter) return size;
    }
    return rule.sizes.emplace_back(letter, 1).second;
  };
  auto visit = [&](const std::string& letters, const Shape& shape, auto&& use) {
    const std::string all = form_letters(letters, shape.size(), most_lead);
    for (size_t d = 0; d < shape.size(); ++d) use(all[d], shape[d], d);
  };
  auto grow = [&](char letter, int64_t extent, size_t) {
    if (extent != 1)
      size_of(letter) = extent;
    else
      size_of(letter);
  };
  for (size_t i = 0; i < outputs.size(); ++i) visit(form.outputs[i], outputs[i], grow);
  for (size_t i = 0; i < inputs.size(); ++i) visit(form.inputs[i], inputs[i], grow);
  auto dims_of = [&](const std::string& letters, const Shape& shape) {
    Dims dims;
    visit(letters, shape, [&](char letter, int64_t extent, size_t) {
      dims.push_back(extent == size_of(letter) ? Dim{letter} : Dim{});
    });
    return dims;
  };
  for (size_t i = 0; i < inputs.size(); ++i)
    rule.inputs.push_back(dims_of(form.inputs[i], inputs[i]));
  for (size_t i = 0; i < outputs.size(); ++i) {
    rule.outputs.push_back(dims_of(form.outputs[i], outputs[i]));
  }
  return rule;
}

}  // namespace piper
