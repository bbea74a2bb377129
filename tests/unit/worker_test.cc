// A thread that works beside a rank handles the signals that its own reads cause.
#include "worker.h"

#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>

#include "folder.h"
#include "piper/runtime/data.h"

namespace piper {
namespace {

std::unique_ptr<Worker> start(std::function<void()> work) {
  Result<std::unique_ptr<Worker>> made = Worker::start(std::move(work), -1);
  EXPECT_TRUE(made.ok());
  return *std::move(made);
}

// The system says by a signal that a page of a mapped file has vanished. It ends the process where
// the thread that reads has blocked it, whoever handles it.
TEST(Worker, AFileThatIsCutIsAnErrorOfItsRead) {
  constexpr int64_t kLength = 1 << 14;
  const Folder folder;
  const std::string file = folder.write("t.bin", std::string(1 << 16, '\1'));
  const InputNeed needs[] = {{"ids", {DType::kI64, {2, kLength}}}};
  const auto source = open_data({.sources = {file + ":u8"}, .shuffle = false}, needs, 2);
  ASSERT_TRUE(source.ok()) << print_error(source.error());
  std::filesystem::resize_file(file, 100);
  std::vector<std::byte> to(2 * kLength * 8);
  Status read = ok_status();
  const auto worker = start([&] { read = (*source)->read(0, 0, 1, 1, to.data()); });
  worker->begin();
  worker->finish();
  ASSERT_FALSE(read.ok());
  EXPECT_EQ(read.error().message,
            fmt::format("'{}' was cut or became unreadable while it was in use", file));
}

// What a job is told, as to stop, is told to the threads that run its ranks.
TEST(Worker, SignalsOfOthersGoToOtherThreads) {
  sigset_t blocked;
  sigemptyset(&blocked);
  const auto worker = start([&] { pthread_sigmask(SIG_SETMASK, nullptr, &blocked); });
  worker->begin();
  worker->finish();
  for (const int other : {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGURG})
    EXPECT_EQ(sigismember(&blocked, other), 1) << other;
  for (const int own : {SIGBUS, SIGSEGV, SIGFPE, SIGILL, SIGABRT})
    EXPECT_EQ(sigismember(&blocked, own), 0) << own;
}

}  // namespace
}  // namespace piper
