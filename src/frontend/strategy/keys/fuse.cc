// Reads the directive `fuse`.
#include "directives.h"

namespace piper::fields {
namespace {

constexpr Field kFuseKeys[] = {
    {"where", kWhereTask, kRequired, "Which messages: tags, pass, kind, value.",
     member<&FuseRule::where>},
    {"bucket", kBytes, kOptional, "Least size of a joined message. Default: join all.",
     member<&FuseRule::bucket_bytes>},
    {"microbatches", kCount, kOptional,
     "Number of neighbouring microbatches that share a message. Default 1.",
     member<&FuseRule::microbatches>},
};

}  // namespace

Directive fuse_directive() {
  return directive<&Strategy::fuses>({"fuse", kFuseKeys},
                                     "Join messages between the same devices.");
}

}  // namespace piper::fields
