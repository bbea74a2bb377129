// Streams for the messages of a pipeline, and when its receives are posted.
#pragma once

namespace piper::layouts {

struct Layout {
  const char* name;
  const char* directives;
};
inline constexpr Layout kLayouts[] = {
    {"compute", ""},
    {"one", "  - stream: {where: {kind: [send, recv]}, name: messages}\n"},
    {"two",
     "  - stream: {where: {kind: send}, name: out}\n"
     "  - stream: {where: {kind: recv}, name: in}\n"},
    {"passes",
     "  - stream: {where: {kind: [send, recv], pass: F}, name: forward}\n"
     "  - stream: {where: {kind: [send, recv], pass: B}, name: backward}\n"},
};
inline constexpr const char* kPostings[] = {"", "eager", "lazy", "2"};

}  // namespace piper::layouts
