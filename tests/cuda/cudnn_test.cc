// Plans of cuDNN's for devices that are not there: attention's graphs, as the backend cuda builds
// them, are what cuDNN has kernels for, deterministic ones, with the workspace that plans state.
// What they compute is not seen here.
#include <dlfcn.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "attention_plan.h"
#include "libraries.h"

namespace piper {
namespace {

using namespace cuda;  // NOLINT: what is tested

// What cuDNN asks of a device: compute capability × 100, multiprocessors, and the shared memory
// that a block may have.
std::string properties_of(int version, int multiprocessors, int shared) {
  return fmt::format(
      R"({{"maxGridSize": [2147483647, 65535, 65535], "maxBlockSize": [1024, 1024, 64],
"regsPerBlock": 65536, "multiProcessorCount": {}, "warpSize": 32, "maxSharedMemoryPerBlock": 49152,
"maxSharedMemoryPerBlockOptin": {}, "reservedSharedMemoryPerBlock": 1024,
"maxRegistersPerSM": 65536, "maxCtasPerSM": 32, "maxThreadsPerBlock": 1024,
"maxThreadsPerSM": 2048, "pciDeviceId": 0, "isTccDriver": 0, "supportCoopLaunch": 1,
"totalGlobalMem": 85899345920, "smClockRateKHz": 1980000, "memClockRateKHz": 2619000,
"l2CacheSize": 52428800, "cudaDeviceId": 0, "deviceVer": {}, "driverVer": 13000,
"deviceName": "a device"}})",
      multiprocessors, shared, version);
}
std::string h100() { return properties_of(900, 132, 232448); }

DeviceRows rows(int64_t tokens, int64_t heads, int64_t width) {
  return {.batch = tokens * heads * width, .token = heads * width, .head = width};
}

struct Shape4 {
  int64_t batch, queries, keys, heads, kv_heads, width;
  bool causal = true, is_packed = false;
  DType type = DType::kBF16;
};

DeviceAttention attention_of(const Shape4& s, bool is_gradient) {
  DeviceAttention a{.is_gradient = is_gradient, .type = s.type};
  a.batch = s.batch, a.queries = s.queries, a.keys = a.all_keys = s.keys;
  a.heads = s.heads, a.kv_heads = s.kv_heads, a.width = a.v_width = s.width;
  a.scale = 0.125, a.causal = s.causal;
  a.q = a.y = a.dq = rows(s.queries, s.heads, s.width);
  a.k = a.v = a.dk = a.dv = rows(s.keys, s.kv_heads, s.width);
  if (!s.is_packed) return a;
  const int64_t row = (s.heads + 2 * s.kv_heads) * s.width;
  a.q = a.k = a.v = {s.queries * row, row, s.width, 0};
  a.k.first = s.heads * s.width, a.v.first = (s.heads + s.kv_heads) * s.width;
  a.dq = a.q, a.dk = a.k, a.dv = a.v;
  return a;
}

class CudnnPlans : public testing::Test {
 protected:
  void SetUp() override {
    // cuDNN asks the loader for a driver by its name, and is given what has it.
    ASSERT_TRUE(dlopen(PIPER_FAKE_CUDA "/no_device/libcuda.so.1", RTLD_NOW | RTLD_GLOBAL))
        << dlerror();
    const auto library = opened<Cudnn>();
    if (!library) GTEST_SKIP() << "no cuDNN: " << library.error().message;
    api_ = &(*library)->functions;
  }

  // Error: why there is no plan.
  Status check(const DeviceAttention& attention, const std::string& device) {
    PIPER_ASSIGN(const DnnObject properties, dnn_properties(*api_, device));
    PIPER_ASSIGN(const AttentionPlan plan,
                 AttentionPlan::make(*api_, attention, {.properties = &properties}));
    EXPECT_LE(plan.workspace_bytes(), cudnn_slice(attention).bytes);
    const CudnnSlice slice = cudnn_slice(attention);
    std::vector<std::byte> memory(16);
    const std::vector<std::byte*> operands(12, memory.data());
    PIPER_ASSIGN(const AttentionPlan::Calls calls, plan.bind(operands, memory.data()));
    EXPECT_EQ(std::ssize(calls),
              attention.batch / slice.samples * (attention.kv_heads / slice.kv_heads));
    return ok_status();
  }
  void expect_plan(const Shape4& shape, const std::string& device) {
    for (const bool is_gradient : {false, true}) {
      const DeviceAttention attention = attention_of(shape, is_gradient);
      ASSERT_TRUE(cudnn_takes(attention));
      const Status made = check(attention, device);
      EXPECT_TRUE(made.ok()) << shape.queries << "x" << shape.keys << ", width " << shape.width
                             << (is_gradient ? ", gradient" : "") << ": " << made.error().message;
    }
  }

  void expect_forms(const std::string& device, bool has_gradients_of_caps);

  const Cudnn* api_ = nullptr;
};

TEST_F(CudnnPlans, OfGpt2) {
  expect_plan({64, 1024, 1024, 12, 12, 64, true, true}, h100());
  expect_plan({4, 1024, 1024, 12, 12, 64, true, true}, h100());
}
TEST_F(CudnnPlans, OfGroupedHeads) { expect_plan({2, 2048, 2048, 32, 8, 128}, h100()); }
TEST_F(CudnnPlans, OfEncoders) {
  expect_plan({8, 512, 512, 12, 12, 64, false, false, DType::kF16}, h100());
  expect_plan({2, 77, 130, 4, 4, 64, false}, h100());
  expect_plan({2, 77, 130, 4, 4, 64, true}, h100());
  expect_plan({2, 130, 77, 4, 4, 64, true}, h100());
}
TEST_F(CudnnPlans, OfSmallAndOddSizes) {
  expect_plan({2, 128, 128, 4, 4, 32, true, true}, h100());
  expect_plan({2, 100, 100, 4, 2, 40}, h100());
  expect_plan({2, 16, 16, 2, 2, 8}, h100());
}
// 4 GiB in one call; two heads at a time they are less.
TEST_F(CudnnPlans, OfLongSequences) { expect_plan({1, 8192, 8192, 32, 32, 128}, h100()); }

TEST_F(CudnnPlans, ForOtherDevices) {
  for (const std::string& device :
       {properties_of(800, 108, 166912), properties_of(1000, 148, 232448),
        properties_of(1200, 170, 101376)})
    expect_plan({4, 256, 256, 8, 4, 64}, device);
}

// ---- Masks, numbers and caps --------------------------------------------------------------------

struct Form {
  const char* name;
  Shape4 shape;
  void (*change)(DeviceAttention&);
  bool has_cap = false;
};
void add_mask(DeviceAttention& a, bool of_batch, bool of_heads, bool of_queries) {
  a.mask = DeviceAttention::kAdds;
  a.mask_step = {of_batch ? a.keys * 64 : 0, of_heads ? a.keys * 8 : 0, of_queries ? a.keys : 0, 1};
}
using A = DeviceAttention;
const Form kForms[] = {
    {"keys' own mask",
     {2, 256, 256, 4, 4, 64, false},
     [](A& a) { add_mask(a, true, false, false); }},
    {"a mask of tokens", {2, 256, 256, 4, 4, 64}, [](A& a) { add_mask(a, false, false, true); }},
    {"a mask of all", {2, 77, 130, 4, 2, 64, false}, [](A& a) { add_mask(a, true, true, true); }},
    {"keys before", {2, 128, 256, 4, 4, 64}, [](A& a) { a.offset = 128; }},
    {"a block of queries", {2, 128, 256, 4, 2, 64}, [](A& a) { a.query_stretches = 1; }},
    {"zigzag", {2, 256, 256, 4, 2, 64}, [](A& a) { a.query_stretches = a.key_stretches = 2; }},
    {"many stretches and a mask",
     {2, 120, 136, 4, 2, 64, true, false, DType::kF16},
     [](A& a) {
       a.query_stretches = a.key_stretches = 4;
       add_mask(a, true, false, false);
     }},
    {"a cap", {2, 256, 256, 4, 2, 64}, [](A& a) { a.softcap = 30; }, true},
};

// All have plans forwards and backwards, but caps alone forwards where `has_gradients_of_caps` is
// not said.
void CudnnPlans::expect_forms(const std::string& device, bool has_gradients_of_caps) {
  for (const Form& form : kForms)
    for (const bool is_gradient : {false, true}) {
      DeviceAttention attention = attention_of(form.shape, is_gradient);
      form.change(attention);
      ASSERT_TRUE(cudnn_takes(attention)) << form.name;
      const Status made = check(attention, device);
      EXPECT_EQ(made.ok(), !is_gradient || !form.has_cap || has_gradients_of_caps)
          << form.name << (is_gradient ? ", gradient" : "") << (made ? "" : made.error().message);
    }
}

TEST_F(CudnnPlans, OfAllFormsForSm80) { expect_forms(properties_of(800, 108, 166912), false); }
TEST_F(CudnnPlans, OfAllFormsForSm90) { expect_forms(h100(), true); }
TEST_F(CudnnPlans, OfAllFormsForSm100) { expect_forms(properties_of(1000, 148, 232448), false); }

// ---- What is refused ----------------------------------------------------------------------------

TEST_F(CudnnPlans, WhatIsNotTakenIsRefused) {
  DeviceAttention attention = attention_of({2, 128, 128, 4, 4, 60}, false);
  ASSERT_FALSE(cudnn_takes(attention));
  EXPECT_EQ(check(attention, h100()).error().message, "not supported: cuDNN has no such attention");
  // Nor does cuDNN take it.
  const DnnObject properties = *dnn_properties(*api_, h100());
  EXPECT_FALSE(attention_graph(attention).graph.plan(*api_, {.properties = &properties}, 1 << 20));
}

TEST_F(CudnnPlans, ThatWantMoreMemoryAreRefused) {
  const DnnObject properties = *dnn_properties(*api_, h100());
  const AttentionGraph graph = attention_graph(attention_of({2, 128, 128, 4, 4, 64}, true));
  const auto plan = graph.graph.plan(*api_, {.properties = &properties}, 1000);
  ASSERT_FALSE(plan.ok());
  EXPECT_NE(plan.error().message.find("bytes, more than 1000"), std::string::npos)
      << plan.error().message;
}

TEST_F(CudnnPlans, ADeviceThatIsNoneIsAnError) {
  EXPECT_FALSE(check(attention_of({2, 128, 128, 4, 4, 64}, false), "{}").ok());
}

}  // namespace
}  // namespace piper
