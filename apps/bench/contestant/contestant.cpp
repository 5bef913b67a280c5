#include "apps/bench/contestant/contestant.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <vector>

#include <fmt/format.h>
#include <sys/mman.h>

#include "paceline/engine/collectives/op_traits.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/dtype_traits.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/timing.h"

#include "apps/bench/contestant/contestant_process.h"
#include "apps/bench/contestant/pattern.h"
#include "apps/bench/messages.h"

namespace paceline::bench {

// One rank's part of a turn: allocates and fills the buffers, times the calls and checks the
// results.
//
// A call is timed on its own: the ranks line up, read the clock, call, read the clock. The
// coordinator takes the time of the slowest rank. With fresh buffers every rank writes its input
// before it lines up, as a backward pass does: if the same untouched buffer were reduced again and
// again, every library would look faster. Two untimed calls come first and, if results are
// checked, one more comes last.
//
// Thread safety: none.
class Measurement {
 public:
  // `contestant` and `start_line` must outlive this object.
  Measurement(Contestant& contestant, StartBarrier& start_line, int rank, int world_size)
      : contestant_(contestant), start_line_(start_line), rank_(rank), world_size_(world_size) {}

  // Collective. Throws the contestant's errors, and Error(kTimeout) when a rank does not line up.
  TurnResult run(const Turn& turn);

 private:
  // Buffers are kept from turn to turn, because libraries cache information about memory that they
  // have used.
  struct Buffer {
    Memory memory;
    std::size_t capacity = 0;
  };
  struct Buffers {
    Buffer input, output;
  };

  Collective prepare(const Turn& turn);
  std::byte* require(Buffer& buffer, MemoryKind kind, std::size_t bytes);
  void give_back_large_buffers();
  std::string lacks(const Turn& turn) const;
  void carry_out(const Turn& turn, const Collective& call);
  void write(const Turn& turn, const Collective& call, const Pattern& pattern);
  std::string checked_call(const Turn& turn, const Collective& call, const Pattern& pattern);
  std::vector<double> timed_calls(const Turn& turn, const Collective& call, const Pattern& pattern);

  Contestant& contestant_;
  StartBarrier& start_line_;
  const int rank_, world_size_;
  std::array<Buffers, 2> buffers_;   // by MemoryKind
  std::vector<std::size_t> counts_;  // of the current call
  std::uint64_t num_calls_ = 0;      // the same on every rank
};

Memory ordinary_memory(std::size_t bytes) {
  void* const data =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) throw system_error(fmt::format("{} bytes of memory", bytes));
  return {static_cast<std::byte*>(data),
          std::shared_ptr<void>(data, [bytes](void* begin) { munmap(begin, bytes); })};
}

void Contestant::run_coalesced(const Collective& call, std::size_t) { run(call); }

Memory Contestant::allocate(MemoryKind, std::size_t bytes) { return ordinary_memory(bytes); }

namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr int kUntimedCalls = 2;
// The smallest capacity of a buffer; its pages are allocated only when they are touched. Larger
// buffers are freed after the turn, so that only one contestant has them at a time.
constexpr std::size_t kKeptBytes = 64 << 20;
constexpr auto kLineUpLimit = 120s;
// Every byte of the output is set to this before the inputs are written, if the result is checked.
constexpr int kStale = 0x5a;

}  // namespace

// Returns the memory of `buffer`, which is allocated again if it has fewer than `bytes` bytes. Null
// if `bytes` is 0. Collective.
std::byte* Measurement::require(Buffer& buffer, MemoryKind kind, std::size_t bytes) {
  if (bytes == 0) return nullptr;
  if (buffer.capacity < bytes) {
    buffer = {};
    const std::size_t capacity = std::max(bytes, kKeptBytes);
    buffer = {contestant_.allocate(kind, capacity), capacity};
  }
  return buffer.memory.data;
}

void Measurement::give_back_large_buffers() {
  for (Buffers& buffers : buffers_) {
    for (Buffer* buffer : {&buffers.input, &buffers.output}) {
      if (buffer->capacity > kKeptBytes) *buffer = {};
    }
  }
}

// Prepares the buffers and the call of a turn. Every rank allocates the same buffers, including
// those that only the root uses, because allocation is collective.
Collective Measurement::prepare(const Turn& turn) {
  Collective call;
  const Op op = turn.op.op;
  call.op = op;
  call.dtype = turn.dtype;
  call.count = turn.count;
  if (has_counts(op)) {
    const auto world = static_cast<std::size_t>(world_size_);
    counts_.assign(has_count_matrix(op) ? world * world : world, turn.count);
    call.counts = counts_;
    call.count = turn.count * counts_.size();
  }
  const std::size_t whole = bytes_of(turn.op, turn.dtype, world_size_, turn.count);
  const std::size_t block = turn.count * size_of(turn.dtype);
  const bool in_place = turn.placement == Placement::kInPlace;
  Buffers& buffers = buffers_[static_cast<std::size_t>(turn.memory)];
  std::byte* const output = require(buffers.output, turn.memory, gets_blocks(op) ? whole : block);
  std::byte* input = output;
  if (!in_place) {
    input = require(buffers.input, turn.memory, gives_blocks(op) ? whole : block);
  } else if (op == Op::kAllGather) {
    input += static_cast<std::size_t>(rank_) * block;
  }
  if (elements_in(call, rank_, world_size_) > 0) call.input = input;
  if (elements_out(call, rank_, world_size_) > 0) call.output = output;
  return call;
}

std::string Measurement::lacks(const Turn& turn) const {
  if (turn.op.is_coalesced && !contestant_.coalesces())
    return fmt::format("has no {}", name_of(turn.op));
  if (turn.op == Op::kSend && world_size_ == 1) return "has no rank to send to";
  return contestant_.lacks(turn.op.op, turn.dtype, turn.placement);
}

void Measurement::carry_out(const Turn& turn, const Collective& call) {
  turn.op.is_coalesced ? contestant_.run_coalesced(call, kCoalescedBuffers) : contestant_.run(call);
}

void Measurement::write(const Turn& turn, const Collective& call, const Pattern& pattern) {
  const std::size_t element = size_of(turn.dtype);
  if (call.input != nullptr) {
    const std::size_t bytes = elements_in(call, rank_, world_size_) * element;
    pattern.write({const_cast<std::byte*>(call.input), bytes}, rank_, num_calls_);
  } else if (call.output != nullptr && turn.placement == Placement::kInPlace) {
    pattern.write({call.output, elements_out(call, rank_, world_size_) * element}, rank_,
                  num_calls_);
  }
}

// Makes a call that is not timed. If the turn asks for the check, returns a text about the first
// wrong element of this rank's result, or "".
std::string Measurement::checked_call(const Turn& turn, const Collective& call,
                                      const Pattern& pattern) {
  if (call.output != nullptr && turn.check) {
    std::memset(call.output, kStale, elements_out(call, rank_, world_size_) * size_of(call.dtype));
  }
  ++num_calls_;
  write(turn, call, pattern);
  start_line_.line_up(Deadline::after(kLineUpLimit));
  carry_out(turn, call);
  if (!turn.check) return "";
  const auto difference = pattern.compare(call, rank_, num_calls_);
  if (!difference) return "";
  return fmt::format("rank {}: element {} of the result is {}, not {}", rank_, difference->index,
                     difference->found, difference->expected);
}

std::vector<double> Measurement::timed_calls(const Turn& turn, const Collective& call,
                                             const Pattern& pattern) {
  std::vector<double> seconds;
  seconds.reserve(static_cast<std::size_t>(turn.max_calls));
  const auto begin_of_turn = Clock::now();
  for (int i = 0; i < turn.max_calls; ++i) {
    const Deadline deadline = Deadline::after(kLineUpLimit);
    const bool wants_more = i < turn.min_calls || seconds_since(begin_of_turn) < turn.seconds;
    if (turn.fresh) {
      start_line_.line_up(deadline);
      ++num_calls_;
      write(turn, call, pattern);
    }
    if (!start_line_.line_up_and_ask(wants_more, deadline)) break;
    const auto begin = Clock::now();
    carry_out(turn, call);
    seconds.push_back(seconds_since(begin));
  }
  return seconds;
}

TurnResult Measurement::run(const Turn& turn) {
  TurnResult result;
  result.lacks = lacks(turn);
  if (!result.lacks.empty()) return result;
  const Pattern pattern(turn.dtype, world_size_);
  const Collective call = prepare(turn);
  const auto untimed_call = [&] {
    const std::string difference = checked_call(turn, call, pattern);
    if (result.difference.empty()) result.difference = difference;
  };
  for (int i = 0; i < kUntimedCalls; ++i) untimed_call();
  result.seconds = timed_calls(turn, call, pattern);
  if (turn.check) untimed_call();
  give_back_large_buffers();
  return result;
}

int run_worker(int argc, char** argv, const Connect& connect) {
  return run_rank(argc, argv, [&](RankEnd& end, const Setup& setup) {
    const int rank = end.environment().rank, world_size = end.environment().world_size;
    const auto contestant = connect({rank, world_size, setup.cpus, setup.option});
    StartBarrier start_line(setup.start_line, rank, world_size, setup.own_core);
    Measurement measurement(*contestant, start_line, rank, world_size);
    end.serve<Turn>(
        {contestant->version(), contestant->has_symmetric_memory(), contestant->gives_results()},
        [&](const Turn& turn) { return measurement.run(turn); });
  });
}

}  // namespace paceline::bench
