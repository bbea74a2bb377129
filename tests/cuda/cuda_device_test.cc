// A device of the backend cuda by itself, on the faked driver: the memory that it takes and the
// multiprocessors that its streams have.
#include <gtest/gtest.h>

#include <cstdlib>

#include "device.h"
#include "fake_library.h"

namespace piper::cuda {
namespace {

class CudaDevice : public testing::Test {
 protected:
  void SetUp() override {
    setenv("PIPER_CUDA_PATH", PIPER_FAKE_CUDA "/all", 1);
    for (const char* name : {"PIPER_CUDA_WITHOUT", "FAKE_CUDA_RDMA", "FAKE_CUDA_FILES"})
      unsetenv(name);
  }
  static std::unique_ptr<Device> open(int64_t ordinal = 0) {
    Result<std::unique_ptr<Device>> made = Device::open(ordinal);
    EXPECT_TRUE(made.ok()) << made.error().message;
    return *std::move(made);
  }
  template <class Function>
  static Function of_fake(const char* name) {
    return reinterpret_cast<Function>(dlsym(fake_library(), name));
  }
};

// Memory is for adapters of a network and shared as a file where the driver lets it, and each of
// the two where it refuses the other.
TEST_F(CudaDevice, MapsMemoryWithWhatTheDriverLetsIt) {
  struct Case {
    const char *rdma, *files;
    int is_for_rdma, shares_files;
  };
  for (const Case& one : {Case{"1", "1", 1, 1},
                          {"0", "1", 0, 1},
                          {"2", "1", 0, 1},
                          {"1", "2", 1, 0},
                          {"1", "0", 1, 0},
                          {"2", "2", 0, 0}}) {
    SCOPED_TRACE(std::string(one.rdma) + one.files);
    setenv("FAKE_CUDA_RDMA", one.rdma, 1);
    setenv("FAKE_CUDA_FILES", one.files, 1);
    const auto device = open();
    const auto reserved = device->reserve(4 << 20);
    ASSERT_TRUE(reserved.ok()) << reserved.error().message;
    const auto at = device->allocate(1024, false);
    ASSERT_TRUE(at.ok());
    EXPECT_EQ(
        of_fake<int (*)(uintptr_t)>("fake_cuda_is_for_rdma")(reinterpret_cast<uintptr_t>(*at)),
        one.is_for_rdma);
    EXPECT_EQ(device->facts().shares_files, one.shares_files);
  }
}

// Streams with limits have different multiprocessors, as long as there are enough; then they share
// those of others, and that is said.
TEST_F(CudaDevice, StreamsWithLimitsHaveMultiprocessorsOfTheirOwn) {
  const auto device = open();
  std::vector<std::string> notes;
  const auto add = [&](const char* name, int64_t sms) {
    const auto number =
        device->add_stream({name, 0, sms}, [&](const std::string& text) { notes.push_back(text); });
    EXPECT_TRUE(number.ok()) << number.error().message;
    int first = 0;
    const int count = of_fake<int (*)(const CuStream*, int*)>("fake_cuda_multiprocessors")(
        device->stream(*number), &first);
    return std::pair(first, count);
  };
  using Part = std::pair<int, int>;  // the first one, and how many
  EXPECT_EQ(add("free", 0), Part(0, 132));
  EXPECT_EQ(add("a", 60), Part(0, 64));
  EXPECT_EQ(add("b", 16), Part(64, 16));
  EXPECT_EQ(add("c", 40), Part(80, 40));
  EXPECT_TRUE(notes.empty());
  EXPECT_EQ(add("d", 16), Part(0, 16));
  EXPECT_EQ(notes,
            std::vector<std::string>{"stream 'd' asks for 16 multiprocessors, and 12 are left "
                                     "by the streams before it: it shares theirs"});
  notes.clear();
  EXPECT_EQ(add("e", 8), Part(120, 8));
  EXPECT_TRUE(notes.empty());
  EXPECT_EQ(add("f", 131), Part(0, 132));
  ASSERT_EQ(notes.size(), 2u);
  EXPECT_EQ(notes[1],
            "stream 'f' takes all multiprocessors: of the 132 of this device 131 cannot be "
            "set apart");
}

// Devices that have met may copy from each other's memory as from their own: from what was taken
// before and from what is taken later, mapped or not.
TEST_F(CudaDevice, ReachesTheMemoryOfOneThatItHasMet) {
  for (const char* without : {"", "vmm"}) {
    setenv("PIPER_CUDA_WITHOUT", without, 1);
    const auto reader = open(0), owner = open(1);
    const auto take = [](Device& device) {
      const auto at = device.allocate(4 << 20, false);
      EXPECT_TRUE(at.ok());
      return reinterpret_cast<CuAddress>(*at);
    };
    const CuAddress before = take(*owner), to = take(*reader);
    ASSERT_TRUE(reader->meet(*owner).ok());
    ASSERT_TRUE(owner->meet(*reader).ok());
    const CuAddress later = take(*owner);
    reader->enter();
    for (const CuAddress from : {before, later}) {
      const Driver& driver = reader->driver();
      EXPECT_EQ(driver.cuMemcpyAsync(to, from, 4 << 20, reader->stream(0)), 0);
      EXPECT_EQ(driver.cuStreamSynchronize(reader->stream(0)), 0) << without;
    }
  }
}

TEST_F(CudaDevice, SaysWhatTheDriverHasLeft) {
  const auto device = open();
  const auto before = device->free_bytes();
  ASSERT_TRUE(before.has_value());
  ASSERT_TRUE(device->reserve(4 << 20).ok());
  EXPECT_EQ(*before - device->free_bytes().value_or(0), 4 << 20);
}

}  // namespace
}  // namespace piper::cuda
