// What a plan set's files are made of. Private to the bundle room.
#pragma once

#include <functional>

#include "piper/plan/worlds.h"

namespace piper {

// Every binary file: 8 bytes of magic, format version (4 bytes, little endian), payload size (8),
// digest of the payload (32 hexadecimal digits), payload.
inline constexpr std::string_view kRankMagic = "PIPRPLN1", kRoleMagic = "PIPRROL1";
std::string wrap(std::string_view magic, std::string_view payload);
// The payload, after its magic, version, size and digest have been checked. `path` is for the
// error.
Result<std::string_view> unwrap(std::string_view magic, std::string_view file,
                                const std::string& path);

std::string encode_role(const RoleProgram& role);
Result<RoleProgram> decode_role(std::string_view payload, const std::string& path);
std::string encode_header(const RankHeader& header);
Result<RankHeader> decode_header(std::string_view payload, const std::string& path);

std::string print_manifest(const Manifest& manifest);
Result<Manifest> parse_manifest(std::string_view text, const std::string& path);
// Returns the digest over the manifest without its set_id.
std::string set_id_of(Manifest manifest);
// Returns true for a text that says of itself that it is the manifest of a plan set, of any
// version.
bool is_manifest(std::string_view text);
// Reads mesh, roles and files of a manifest of any version that writes them as this one does. Its
// version and set id are not checked: to know which files a set has, not to run it.
std::optional<Manifest> manifest_outline(std::string_view text);

// Says which role each rank runs: `axes` are those on which it depends, `roles` the table over
// their coordinates, row-major. Its size does not grow along the other axes.
struct RoleTable {
  std::vector<std::string> axes;
  std::vector<std::string> roles;
};
RoleTable fold_roles(const Mesh& mesh, const std::vector<std::string>& role_of_rank);
Result<std::vector<std::string>> unfold_roles(const Mesh& mesh, const RoleTable& table,
                                              const std::string& path);

inline constexpr int64_t kMaxWorld = int64_t{1} << 20;
// Returns the product of the axes, or nothing when an axis is not positive or the world is larger
// than kMaxWorld.
std::optional<int64_t> world_of(const Mesh& mesh);
// Elements × size, or nothing when a dim is negative, there are more than 16, or the product
// overflows.
std::optional<int64_t> bytes_of(const TensorType& type);

// Checks any role program: ids and numbers in range. All below need that.
Status check_fields(const RoleProgram& role);
Status check_program(const Program& program);
// Checks a role program whose groups and memory are possible.
Status check_buffers(const RoleProgram& role);
int64_t members_of(const RoleProgram& role, int32_t group);
// Returns whether flat runs of `own` elements are parts of a whole over so many members. The
// elements past its end are fewer than all ranks: what is cut over some of them is cut so that it
// could be over more.
bool is_part(const RoleProgram& role, int64_t own, int64_t whole, int64_t members);
// Cuts a dim to a member's blocks; false where these are not equal.
bool cut_dim(Shape& shape, int64_t dim, int64_t outer, int64_t parts);
// Checks the sizes of a role program that is sound otherwise.
Status check_sizes(const RoleProgram& role);

inline constexpr const char* kInitFile = "params/init.safetensors";
std::string role_file(const std::string& digest);
std::string rank_file(int64_t rank);

// Writes a set and its oracles below a directory that is there, and returns the digest of its
// manifest.
Result<std::string> write_sets(const SetWithOracles& sets, const std::string& directory);
// Puts what `fill` writes to a new directory in the place of `directory`, in one step. What is
// there has to be nothing but plan sets, and is replaced with `options.force` alone.
Status replace_plans(const std::string& directory, const WriteOptions& options,
                     const std::function<Status(const std::string& built)>& fill);
// Returns the names of an index of several sets and of their folders that a directory has.
struct SeveralSets {
  std::vector<std::string> indices, folders;
};
SeveralSets several_sets_in(const std::string& directory);

}  // namespace piper
