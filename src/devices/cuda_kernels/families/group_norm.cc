// Emits kernels of GroupNorm and its gradients.
#include "families.h"
#include "walk.h"

namespace piper::cuda_kernels {
namespace {

struct Groups {
  int64_t samples = 0, groups = 0, channels = 0, size = 0;
};
Groups groups_of(const Use& use, const Shape& x) {
  const int64_t groups = use.attrs.integer("groups");
  return {x[0], groups, x[1] / groups, extent(x, 2, x.size())};
}

// Launches a block for each group of a sample.
void take_groups(const Groups& g, std::string_view call, Emitter& emit) {
  if (g.channels * g.size == 0) return;
  emit.kernel({.family = "expression group_norm",
               .body = fmt::format("  typedef groups::Group<{}LL, {}LL, {}LL, {}> G;\n  {}",
                                   g.groups, g.channels, g.size, kThreads, call),
               .blocks = g.samples * g.groups,
               .threads = kThreads});
}

Status make_group_norm(const Use& use, Emitter& emit) {
  const std::string_view type = type_name(use.type());
  const double epsilon = use.attrs.real("epsilon", 1e-5);
  take_groups(
      groups_of(use, use.in(0)),
      fmt::format(
          "groups::group_norm<G>(p.at<const {0}>(0), p.at<const {0}>(1), p.at<const {0}>(2), "
          "p.at<{0}>(3), p.at<{0}>(4), p.at<{0}>(5), {1});",
          type, literal(epsilon, compute_type(use.type()))),
      emit);
  return ok_status();
}

Status make_group_norm_grad_x(const Use& use, Emitter& emit) {
  take_groups(
      groups_of(use, use.in(1)),
      fmt::format("groups::group_norm_grad_x<G>(p.at<const {0}>(0), p.at<const {0}>(1), "
                  "p.at<const {0}>(2), p.at<const {0}>(3), p.at<const {0}>(4), p.at<{0}>(5));",
                  type_name(use.type())),
      emit);
  return ok_status();
}

Status make_group_norm_grad_params(const Use& use, Emitter& emit) {
  const Groups g = groups_of(use, use.in(1));
  emit.kernel({.family = "expression group_norm",
               .body = fmt::format(
                   "  groups::group_norm_grad_params<{1}LL, {2}LL, {3}LL, {4}LL, {5}>("
                   "p.at<const {0}>(0), p.at<const {0}>(1), p.at<const {0}>(2), "
                   "p.at<const {0}>(3), p.at<{0}>(4), p.at<{0}>(5));",
                   type_name(use.type()), g.samples, g.groups, g.channels, g.size, kThreads),
               .blocks = g.groups * g.channels,
               .threads = kThreads});
  return ok_status();
}

}  // namespace

std::vector<MakerRow> group_norm_kernels() {
  return {{"GroupNorm", make_group_norm},
          {"GroupNormGradParams", make_group_norm_grad_params},
          {"GroupNormGradX", make_group_norm_grad_x}};
}

}  // namespace piper::cuda_kernels
