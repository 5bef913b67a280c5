#include "paceline/launcher/output/console.h"

#include <chrono>
#include <cstdlib>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "paceline/engine/core/log.h"
#include "paceline/launcher/process/process.h"

#include "tests/harness/watchdog.h"

namespace paceline::launcher {
namespace {

std::string all_of(const Fd& pipe) {
  std::string text(1 << 16, '\0');
  const ssize_t length = read(pipe.get(), text.data(), text.size());
  text.resize(length > 0 ? static_cast<std::size_t>(length) : 0);
  return text;
}

TEST(Consoles, keep_the_launchers_words_apart_from_output) {
  const Pipe out = make_pipe(), err = make_pipe();
  EventLoop loop;
  Consoles consoles(loop, -1, out.write_end.get(), err.write_end.get());
  consoles.out().write("output\n");
  consoles.say("words\n");
  consoles.tell_over(3);  // has no effect, because there is no other launcher
  EXPECT_EQ(all_of(out.read_end), "output\n");
  EXPECT_EQ(all_of(err.read_end), "words\n");
}

TEST(Consoles, take_the_log_and_never_wait_for_its_reader) {
  const Pipe out = make_pipe(), err = make_pipe();
  fcntl(err.read_end.get(), F_SETFL, O_NONBLOCK);
  const harness::Watchdog watchdog(std::chrono::seconds(30), "writing to the log");
  EventLoop loop;
  {
    Consoles consoles(loop, -1, out.write_end.get(), err.write_end.get());
    consoles.take_log();
    consoles.err().write(std::string(100'000, 'x'));  // more than a pipe holds
    log::warning("first");
    loop.turn(Deadline::after(std::chrono::seconds(1)));
    log::warning("second");
    while (!consoles.empty()) {
      all_of(err.read_end);
      consoles.err().flush();
    }
    log::warning("third");
  }
  const std::string text = all_of(err.read_end);
  EXPECT_NE(text.find("paceline: third\n"), std::string::npos) << text;
}

TEST(Console, does_not_wait_for_a_terminal_that_nobody_reads) {
  const Fd master(posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  ASSERT_TRUE(master && grantpt(master.get()) == 0 && unlockpt(master.get()) == 0);
  const Fd terminal(open(ptsname(master.get()), O_RDWR | O_NOCTTY | O_CLOEXEC));
  ASSERT_TRUE(terminal);
  const harness::Watchdog watchdog(std::chrono::seconds(30), "writing to a terminal");
  Console console(terminal.get());
  const std::string text(100'000, 'x');
  console.write(text);
  EXPECT_GT(console.num_pending(), 0U);
  EXPECT_EQ(fcntl(terminal.get(), F_GETFL) & O_NONBLOCK, 0);  // as other processes see it
  std::size_t num_read = 0;
  while (num_read < text.size()) {
    console.flush();
    num_read += all_of(master).size();
  }
  EXPECT_TRUE(console.empty());
}

TEST(Consoles, send_words_to_the_launcher_of_hosts_as_frames) {
  const Pipe notices = make_pipe(), err = make_pipe();
  EventLoop loop;
  Consoles consoles(loop, notices.write_end.get(), err.write_end.get(), err.write_end.get());
  consoles.say("of this host");
  consoles.announce("of the job");
  consoles.say("");
  consoles.tell_leads({"10.0.0.1", 4000});
  consoles.tell_over(3);
  consoles.tell_timeline("packed");
  FrameReader reader;
  reader.feed(all_of(notices.read_end));
  const auto expect = [&](FrameKind kind, const std::string& payload) {
    const auto frame = reader.next();
    ASSERT_TRUE(frame);
    EXPECT_EQ(frame->kind, kind);
    EXPECT_EQ(frame->payload, payload);
  };
  expect(FrameKind::kSay, "of this host");
  expect(FrameKind::kAnnounce, "of the job");
  expect(FrameKind::kLeads, encode(Endpoint{"10.0.0.1", 4000}));
  expect(FrameKind::kOver, "\x03");
  expect(FrameKind::kTimeline, "packed");
  EXPECT_FALSE(reader.next());
}

}  // namespace
}  // namespace paceline::launcher
