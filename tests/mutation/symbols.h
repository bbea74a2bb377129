// Symbols: what a cell of memory holds, and what ops make of them.
#pragma once

#include "piper/plan/bundle.h"

namespace piper::mutation {

using Symbol = uint64_t;
using Symbols = std::vector<Symbol>;

// The finaliser of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators,
// 2014).
inline Symbol scramble(Symbol x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}
inline Symbol join(Symbol a, Symbol b) { return scramble(a * 0x2545f4914f6cdd1d + b); }
inline Symbol symbol_of(std::string_view text) {
  Symbol s = text.size();
  for (char c : text) s = join(s, static_cast<unsigned char>(c));
  return s;
}
inline Symbol symbol_of(const Symbols& cells) {
  Symbol s = cells.size();
  for (Symbol c : cells) s = join(s, c);
  return s;
}

inline int64_t cells_of(const TensorType& type) { return (type.bytes() + 3) / 4; }
// Cells that all follow from one symbol.
inline Symbols spread(Symbol from, int64_t cells) {
  Symbols made(static_cast<size_t>(cells));
  for (size_t i = 0; i < made.size(); ++i) made[i] = join(from, i);
  return made;
}

// Of a literal.
inline Symbols spread_bytes(std::string_view bytes, int64_t cells) {
  const bool zero = bytes.find_first_not_of('\0') == bytes.npos;
  return zero ? Symbols(static_cast<size_t>(cells)) : spread(symbol_of(bytes), cells);
}

struct Operand {
  TensorType type;
  Symbols cells;
};
// What an op makes of its operands, in its outputs' types. Adding is a sum of symbols, anything
// else a hash; but zeros that are only moved stay zeros, the symbol 0, which adds nothing.
std::vector<Symbols> apply(const ProgramOp& op, const std::vector<Operand>& inputs,
                           const std::vector<TensorType>& outputs);

}  // namespace piper::mutation
