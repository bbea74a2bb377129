// Programs of the closed op set for what a fabric computes: sums in rank order, and rows chosen by
// their owners.
#include <cstring>

#include "stages.h"

namespace piper::device_fabric {
namespace {

// Writes a program: arguments first, then an op after the other.
class Writer {
 public:
  explicit Writer(std::string label) { program_.label = std::move(label); }

  int32_t argument(TensorType type, bool read, bool written) {
    program_.values.push_back(std::move(type));
    program_.arg_read.push_back(read);
    program_.arg_written.push_back(written);
    return program_.num_args++;
  }
  template <class T>
  int32_t literal(DType dtype, T value) {
    std::string bytes(sizeof(T), '\0');
    std::memcpy(bytes.data(), &value, sizeof(T));
    const int32_t made = add({dtype, {}});
    program_.literals.emplace_back(made, std::move(bytes));
    return made;
  }
  int32_t op(const char* name, std::vector<int32_t> inputs, TensorType type, Attrs attrs = {}) {
    const int32_t made = add(std::move(type));
    into(made, name, std::move(inputs), std::move(attrs));
    return made;
  }
  void into(int32_t output, const char* name, std::vector<int32_t> inputs, Attrs attrs = {}) {
    program_.ops.push_back({name, std::move(attrs), std::move(inputs), {output}});
  }
  Program take() { return std::move(program_); }

 private:
  int32_t add(TensorType type) {
    program_.values.push_back(std::move(type));
    return static_cast<int32_t>(program_.values.size()) - 1;
  }
  Program program_;
};

bool is_narrow(DType dtype) { return dtype == DType::kBF16 || dtype == DType::kF16; }

TensorType rows_type(int64_t rows, int64_t row_bytes) {
  const DType dtype = carrier_of(row_bytes);
  return {dtype, {rows, row_bytes / info(dtype).bytes}};
}
// Returns a number of which all bits are as those of `byte`.
int32_t filled(Writer& write, DType dtype, uint8_t byte) {
  const uint32_t all = 0x01010101u * byte;
  if (dtype == DType::kI32) return write.literal(dtype, all);
  if (dtype == DType::kBF16) return write.literal(dtype, static_cast<uint16_t>(all));
  return write.literal(dtype, static_cast<uint8_t>(byte != 0));
}

// Returns whether the numbers, i64[rows], are in [first, first + owned), as a column of `rows`.
int32_t is_between(Writer& write, int32_t numbers, int64_t rows, int64_t first, int64_t owned) {
  const TensorType each{DType::kBool, {rows}};
  const int32_t from =
                    write.op("GreaterOrEqual", {numbers, write.literal(DType::kI64, first)}, each),
                to = write.op("Less", {numbers, write.literal(DType::kI64, first + owned)}, each);
  const int32_t both = write.op("And", {from, to}, each);
  return write.op("Reshape", {both}, {DType::kBool, {rows, 1}},
                  {{"shape", std::vector<int64_t>{rows, 1}}});
}
// Returns an index as i64, negative ones counted back from the last.
int32_t counted(Writer& write, int32_t index, int64_t rows, const Rows& of) {
  const TensorType type{DType::kI64, {rows}};
  const int32_t wide = of.wide ? index : write.op("Cast", {index}, type, {{"to", "i64"}});
  const int32_t below =
      write.op("Less", {wide, write.literal(DType::kI64, int64_t{0})}, {DType::kBool, {rows}});
  const int32_t behind =
      write.op("Add", {wide, write.literal(DType::kI64, of.members * of.owned)}, type);
  return write.op("Where", {below, behind, wide}, type);
}

TensorType index_type(const Rows& rows, int64_t count) {
  return {rows.wide ? DType::kI64 : DType::kI32, {count}};
}

}  // namespace

Program reduction(Reduction how, DType dtype, int64_t count, int64_t members) {
  Writer write(
      fmt::format("{} of {} members", how == Reduction::kSum ? "sum" : "greatest", members));
  const TensorType type{dtype, {count}};
  const TensorType wide{is_narrow(dtype) ? DType::kF32 : dtype, {count}};
  std::vector<int32_t> from;
  for (int64_t m = 0; m < members; ++m) from.push_back(write.argument(type, true, false));
  const int32_t to = write.argument(type, false, true);
  const char* name = how == Reduction::kSum ? "Add" : "Max";
  if (is_narrow(dtype))
    for (int32_t& each : from) each = write.op("Cast", {each}, wide, {{"to", "f32"}});
  int32_t sum = from[0];
  for (size_t m = 1; m < from.size(); ++m) {
    if (m + 1 == from.size() && wide == type)
      write.into(to, name, {sum, from[m]});
    else
      sum = write.op(name, {sum, from[m]}, wide);
  }
  if (wide != type) write.into(to, "Cast", {sum}, {{"to", info(dtype).name}});
  return write.take();
}

Program keeping(const Rows& rows, int64_t own) {
  Writer write("rows that it owns");
  const TensorType type = rows_type(rows.count, rows.row_bytes);
  const int32_t whole = write.argument(type, true, true);
  const int32_t index = write.argument(index_type(rows, rows.count), true, false);
  const int32_t numbers = counted(write, index, rows.count, rows);
  const int32_t kept = is_between(write, numbers, rows.count, own * rows.owned, rows.owned);
  const int32_t zero = filled(write, type.dtype, 0);
  write.into(whole, "Where", {kept, whole, zero});
  return write.take();
}

Program choosing(const Rows& rows, int64_t count) {
  Writer write("rows from their owners");
  const TensorType type = rows_type(count, rows.row_bytes);
  std::vector<int32_t> members;
  for (int64_t m = 0; m < rows.members; ++m) members.push_back(write.argument(type, true, false));
  const int32_t of = write.argument(index_type(rows, count), true, false);
  const int32_t part = write.argument(type, false, true);
  const int32_t numbers = counted(write, of, count, rows);
  int32_t chosen = filled(write, type.dtype, 0xff);
  for (int64_t m = 0; m < rows.members; ++m) {
    const int32_t is_its = is_between(write, numbers, count, m * rows.owned, rows.owned),
                  its = members[static_cast<size_t>(m)];
    if (m + 1 == rows.members)
      write.into(part, "Where", {is_its, its, chosen});
    else
      chosen = write.op("Where", {is_its, its, chosen}, type);
  }
  return write.take();
}

namespace {

Attrs blocks_of(const Shard& shard) {
  return {{"to", std::string(kScaledNames[static_cast<size_t>(shard.blocks.type)])},
          {"block", shard.blocks.block}};
}
TensorType words(int64_t bytes) { return {DType::kI32, {bytes / info(DType::kI32).bytes}}; }

}  // namespace

Program putting(const Shard& shard) {
  Writer write("part in blocks");
  const int32_t part = write.argument({shard.dtype, {shard.part_count}}, true, false),
                to = write.argument(words(part_in_blocks(shard)), false, true);
  write.into(to, "ToBlocks", {part}, blocks_of(shard));
  return write.take();
}

Program putting_parts(const Shard& shard) {
  Writer write("parts in blocks");
  Attrs attrs = blocks_of(shard);
  attrs.set("run", shard.part_count);
  const int32_t whole = write.argument({shard.dtype, {shard.count}}, true, false),
                to = write.argument(words(parts_of(shard) * part_in_blocks(shard)), false, true);
  write.into(to, "ToBlocks", {whole}, std::move(attrs));
  return write.take();
}

Program adding_parts(const Shard& shard, int64_t members) {
  Writer write(fmt::format("sum in blocks of {} members", members));
  const TensorType type{shard.dtype, {shard.part_count}};
  const TensorType wide{is_narrow(shard.dtype) ? DType::kF32 : shard.dtype, type.shape};
  Attrs attrs = blocks_of(shard);
  attrs.set("shape", std::vector<int64_t>{shard.part_count});
  attrs.set("type", std::string(info(shard.dtype).name));
  std::vector<int32_t> from;
  for (int64_t m = 0; m < members; ++m)
    from.push_back(write.argument(words(part_in_blocks(shard)), true, false));
  const int32_t to = write.argument(type, false, true);
  int32_t sum = -1;
  for (size_t m = 0; m < from.size(); ++m) {
    int32_t term = write.op("FromBlocks", {from[m]}, type, attrs);
    if (wide != type) term = write.op("Cast", {term}, wide, {{"to", "f32"}});
    if (m > 0 && m + 1 == from.size() && wide == type)
      write.into(to, "Add", {sum, term});
    else
      sum = m == 0 ? term : write.op("Add", {sum, term}, wide);
  }
  if (wide != type) write.into(to, "Cast", {sum}, {{"to", info(shard.dtype).name}});
  if (wide == type && members == 1) write.into(to, "Reshape", {sum}, {{"shape", type.shape}});
  return write.take();
}

Program taking(const Shard& shard) {
  Writer write("whole of blocks");
  Attrs attrs = blocks_of(shard);
  attrs.set("run", shard.part_count);
  attrs.set("shape", std::vector<int64_t>{shard.count});
  attrs.set("type", std::string(info(shard.dtype).name));
  const int32_t from = write.argument(words(parts_of(shard) * part_in_blocks(shard)), true, false),
                to = write.argument({shard.dtype, {shard.count}}, false, true);
  write.into(to, "FromBlocks", {from}, std::move(attrs));
  return write.take();
}

DType carrier_of(int64_t row_bytes) {
  return row_bytes % 4 == 0 ? DType::kI32 : row_bytes % 2 == 0 ? DType::kBF16 : DType::kBool;
}

Result<int32_t> Arithmetic::bind(const Program& program, std::span<std::byte* const> args) {
  const std::string name = program_digest(program);
  int32_t loaded = -1;
  for (const auto& [digest, id] : loaded_)
    if (digest == name) loaded = id;
  if (loaded < 0) {
    PIPER_ASSIGN(loaded, backend_.load(program));
    loaded_.emplace_back(name, loaded);
  }
  PIPER_ASSIGN(std::byte* const workspace,
               workspaces_.at_least(stream_, backend_.workspace_bytes(loaded)));
  return backend_.bind(loaded, args, workspace);
}

Result<int32_t> Arithmetic::reduce(Reduction how, DType dtype, int64_t count,
                                   std::span<std::byte* const> from, std::byte* to) {
  std::vector<std::byte*> args(from.begin(), from.end());
  args.push_back(to);
  return bind(reduction(how, dtype, count, std::ssize(from)), args);
}

Result<int32_t> Arithmetic::keep_owned(const Rows& rows, int64_t own) {
  std::byte* const args[] = {rows.whole, const_cast<std::byte*>(rows.index)};
  return bind(keeping(rows, own), args);
}

Result<int32_t> Arithmetic::put_in_blocks(const Shard& shard, std::byte* to) {
  std::byte* const args[] = {shard.part, to};
  return bind(putting(shard), args);
}

Result<int32_t> Arithmetic::take_from_blocks(const Shard& shard, std::byte* from) {
  std::byte* const args[] = {from, shard.whole};
  return bind(taking(shard), args);
}

Result<int32_t> Arithmetic::put_parts_in_blocks(const Shard& shard, std::byte* to) {
  std::byte* const args[] = {shard.whole, to};
  return bind(putting_parts(shard), args);
}

Result<int32_t> Arithmetic::add_parts(const Shard& shard, std::span<std::byte* const> from) {
  std::vector<std::byte*> args(from.begin(), from.end());
  args.push_back(shard.part);
  return bind(adding_parts(shard, std::ssize(from)), args);
}

Result<int32_t> Arithmetic::choose_owner(const Rows& rows, int64_t count, std::byte* index,
                                         std::span<std::byte* const> from, std::byte* to) {
  std::vector<std::byte*> args(from.begin(), from.end());
  args.push_back(index);
  args.push_back(to);
  return bind(choosing(rows, count), args);
}

}  // namespace piper::device_fabric
