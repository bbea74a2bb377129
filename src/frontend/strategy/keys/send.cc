// Reads the directive `send`.
#include "directives.h"
#include "sent.h"

namespace piper::fields {
namespace {

constexpr Word kHandedOn[] = {{"activations"}, {"gradients"}};

Status read_handed_on(const Field& field, const yaml::Entry& entry, const Reading& reading,
                      SendRule& out) {
  std::vector<std::string> given;
  PIPER_TRY(read_value(field, entry.value, reading, given));
  out.activations = std::ranges::count(given, kHandedOn[0].name) > 0;
  out.gradients = std::ranges::count(given, kHandedOn[1].name) > 0;
  if (given.empty()) return fail(entry.value.at, "send: 'what' names nothing");
  return ok_status();
}
std::string print_handed_on(const Field&, const SendRule& from) {
  if (from.activations && from.gradients) return "";
  return std::string(kHandedOn[from.activations ? 0 : 1].name);
}

Status read_across(const Field& field, const yaml::Entry& entry, const Reading& reading,
                   SendRule& out) {
  out.across_at = entry.value.at;
  return read_value(field, entry.value, reading, out.across);
}

Status check_send(const Fields& map, const Reading& reading, SendRule& out) {
  const std::string micro = reading.strategy.micro_name();
  if (out.across == micro)
    return fail(out.across_at, "send: no value goes from one microbatch to another");
  PIPER_TRY(check_where_of_ops(out.where, "send", {"pass", micro}));
  return check_rounded(map, out.in, out.dtype, out.lossy, out.dtype_at,
                       "activations and gradients");
}

constexpr Field kSendKeys[] = {
    {"across", kName, kRequired,
     "A tag: what an op makes for one that has another value of the tag is rounded.",
     custom<read_across, print_member<&SendRule::across>>},
    {"dtype", one_of(kSentTypes), kRequired, "Type in which it travels; f32: as it is.",
     kSentIn<&SendRule::dtype, &SendRule::in, &SendRule::dtype_at>},
    {"lossy", kBool, kOptional, "Allow rounding to it. Default false.", member<&SendRule::lossy>},
    {"block", kInteger, kOptional,
     "With int8 and float8: so many elements have one scale. Default 256.",
     kBlocksOf<&SendRule::in>},
    {"what", some_of(kHandedOn), kOptional,
     "What forward ops make, what backward ops make. Default: both.",
     custom<read_handed_on, print_handed_on>},
    {"match", kPaths, kOptional,
     "Values by the scope path of the op that makes them. Default: all that no other entry names.",
     member<&SendRule::match>},
    {"where", kWhere, kOptional, "Values by the tags of that op.", member<&SendRule::where>},
};

}  // namespace

Directive send_directive() {
  return directive<&Strategy::sends>({"send", kSendKeys, checked<check_send>},
                                     "Send what stages hand on in fewer bits, rounded.");
}

}  // namespace piper::fields
