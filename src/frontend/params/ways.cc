// From what the exporter computed to the parameter.
#include <cmath>
#include <set>

#include "pieces.h"
#include "piper/frontend/onnx.h"

namespace piper::onnx_import {
namespace {

size_t larger_dims(const Shape& shape) {
  return static_cast<size_t>(
      std::count_if(shape.begin(), shape.end(), [](int64_t d) { return d != 1; }));
}

// Describes one function undone: the shape that it was given, and how it came to that of `value`.
struct Piece {
  Shape from;
  Derivation steps;
  std::string note = {};
};

Result<Piece> permuted_back(const OnnxTensor& value) {
  const Shape& shape = value.type.shape;
  if (shape.size() < 2) return Piece{shape, {}};
  if (shape.size() > 2) return fail("the order of the dims of {} is lost", to_string(shape));
  const Shape from{shape[1], shape[0]};
  return Piece{from, transposition(from)};
}

// Undoes an unsqueeze, which made a dim of 1. Another shape is known where only one dim is larger.
Result<Piece> reshaped_back(const OnnxTensor& value, std::string_view stem, const Chain& chain) {
  const Shape& shape = value.type.shape;
  Shape from;
  const auto ones = std::count(shape.begin(), shape.end(), 1);
  const bool whole =
      stem == "unsqueeze" && (ones == 0 || ones == std::count(chain.functions.begin(),
                                                              chain.functions.end(), "unsqueeze"));
  if (shape.empty()) return Piece{shape, {}, kKeepsShape};
  if (larger_dims(shape) > 1 && !whole) return Piece{shape, {}, kKeepsShape};
  std::copy_if(shape.begin(), shape.end(), std::back_inserter(from),
               [](int64_t d) { return d != 1; });
  if (from.empty()) from = {1};
  if (from == shape) return Piece{shape, {}, stem == "unsqueeze" ? "" : kKeepsShape};
  return Piece{from, {reshape_step(from, shape)}};
}

// Returns whether the value repeats itself along some dim, which hides what it was made of.
bool is_periodic(const OnnxTensor& value) {
  const Shape& shape = value.type.shape;
  for (size_t d = 0; d < shape.size(); ++d)
    for (int64_t period = 1; period < shape[d]; ++period) {
      if (shape[d] % period != 0) continue;
      Shape part = shape;
      part[d] = shape[d] - period;
      if (as_text(slice_of(value, d, 0, part).span()) ==
          as_text(slice_of(value, d, period, part).span()))
        return true;
    }
  return false;
}

Result<Piece> repeated_back(const OnnxTensor& value, std::string_view stem) {
  const Shape& shape = value.type.shape;
  auto [from, data] = compress(value.data, shape, value.type.dtype);
  if (larger_dims(from) == 0 && larger_dims(shape) > 0)
    return fail("equal numbers do not show how often they were repeated");
  if (stem == "repeat" && is_periodic({"", {value.type.dtype, from}, data}))
    return fail("where its repetitions begin is lost");
  if (from == shape) return Piece{shape, {}};
  return Piece{from, {expand_step(from, shape)}, kKeepsShape};
}

bool rows_differ(const Bytes& data, size_t rows) {
  const std::string_view text = as_text(data.span());
  std::set<std::string_view> seen;
  for (size_t r = 0; r < rows; ++r)
    if (!seen.insert(text.substr(r * (text.size() / rows), text.size() / rows)).second)
      return false;
  return true;
}

// Undoes a lookup at constant positions. A table that repeats itself along whole dims, as a table
// of positions does along the batch, is taken once. Fails where rows are equal otherwise, as those
// of relative positions are, since the order of the table is lost then, and where each row is of
// one number, since these may be equal by chance.
Result<Piece> looked_up_back(const OnnxTensor& value) {
  const Shape& shape = value.type.shape;
  const Error lost = fail("which rows it looked up is lost");
  if (shape.size() < 2 || value.data.size == 0) return lost;
  auto [once, data] = compress(value.data, shape, value.type.dtype);
  const int64_t rows = num_elements(once) / shape.back();
  if (once.back() != shape.back() || !rows_differ(data, static_cast<size_t>(rows))) return lost;
  Piece out{{rows, shape.back()}, {}};
  if (once != out.from) out.steps.push_back(reshape_step(out.from, once));
  if (once != shape) out.steps.push_back(expand_step(once, shape));
  out.note = fmt::format(
      "was looked up at constant positions by the exporter: it has the {} row{} that the file "
      "keeps, in the order looked up; --init brings the others",
      rows, rows == 1 ? "" : "s");
  return out;
}

Result<Piece> piece_back(std::string_view stem, const OnnxTensor& value, const Chain& chain) {
  const Shape& shape = value.type.shape;
  switch (kind_of(stem)) {
    case PieceKind::kSame:
      return Piece{shape, {}};
    case PieceKind::kPermute:
      return permuted_back(value);
    case PieceKind::kReshape:
      return reshaped_back(value, stem, chain);
    case PieceKind::kRepeat:
      return repeated_back(value, stem);
    case PieceKind::kPart:
      return Piece{
          shape,
          {},
          fmt::format("the file keeps {} of it, the part that the model reads, and that is "
                      "what is saved; --init with the module's state_dict restores the "
                      "whole, and tools/export.py keeps it",
                      to_string(shape))};
    case PieceKind::kLookup:
      return looked_up_back(value);
    case PieceKind::kIndex:
      return fail("which rows it looked up is lost");
    case PieceKind::kNumber:
      if (stem == "add" && chain.plus)
        return Piece{shape,
                     {literal_step("Add", shape, scalar_literal(*chain.plus, value.type.dtype))}};
      return fail("the other operand of '{}' is lost", stem);
    default:
      break;
  }
  Derivation steps = function_steps(stem, shape);
  if (steps.empty()) return fail("'{}' has no inverse", stem);
  return Piece{shape, std::move(steps)};
}

// Rows are looked up: what moves their elements elsewhere leaves no rows to be seen, and a function
// may be one of their places.
Status check_rows(const Chain& chain) {
  if (!looks_up(chain)) return ok_status();
  for (const std::string& function : chain.functions) {
    const PieceKind kind = kind_of(function);
    const bool inner = &function != &chain.functions.back();
    if (kind == PieceKind::kPart || kind == PieceKind::kPermute || kind == PieceKind::kSum ||
        (kind == PieceKind::kUnknown && inner) ||
        (kind == PieceKind::kReshape && function != "unsqueeze"))
      return fail("which rows it looked up is lost after '{}'", function);
  }
  return ok_status();
}

Result<Way> one_way_back(const OnnxTensor& folded, const Chain& chain) {
  PIPER_TRY(check_rows(chain));
  Way way{folded.type, {}};
  OnnxTensor value = folded;
  for (size_t f = chain.functions.size(); f-- > 0;) {
    PIPER_ASSIGN(Piece piece, piece_back(chain.functions[f], value, chain));
    if (!piece.note.empty()) way.note = piece.note;
    PIPER_ASSIGN(value, parameter_of(piece.steps, value));
    way.derivation.insert(way.derivation.begin(), piece.steps.begin(), piece.steps.end());
  }
  way.type.shape = value.type.shape;
  PIPER_TRY(parameter_of(way.derivation, folded));
  return way;
}

}  // namespace

Result<Way> way_back(const OnnxTensor& folded, const Chain& chain) {
  std::optional<Result<Way>> found;
  for (const Chain& order : orders(chain)) {
    Result<Way> way = one_way_back(folded, order);
    if (!found || (way && !*found)) {
      found = std::move(way);
      continue;
    }
    if (!way) continue;
    const Result<OnnxTensor> a = parameter_of((*found)->derivation, folded);
    const Result<OnnxTensor> b = parameter_of(way->derivation, folded);
    if (!a || !b || a->type != b->type || as_text(a->data.span()) != as_text(b->data.span()))
      return fail("the order of {} is lost", join(chain.functions, ", "));
  }
  return *std::move(found);
}

}  // namespace piper::onnx_import
