#pragma once

// The bytes of a connection between workers of one host: two rings in memory that both ends share,
// one for each direction. The caller makes them and hands them over the socket (kRings), which then
// carries doorbells only: single bytes that say "look again", and descriptors.
//
// Who rings:
//
//  1. A reader that found nothing says so (wait_for_data()), and looks once more. The writer that
//     sees it afterwards rings, once. A reader that is awake, or spins, costs no system call.
//  2. A writer that found no room says so, in the same way. The reader rings once half of the ring
//     is free.
//  3. The end of the socket is the end of the connection; what was written before is still read.
//
// Each end keeps its own position in memory of its own, and checks what it reads of the other's, so
// an end that breaks the rules harms only its connection.
//
// Thread safety: one thread at a time writes, and one reads.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include <sys/uio.h>

#include "paceline/engine/core/fd.h"
#include "paceline/engine/transport/mapping.h"

namespace paceline::rpc {

class Rings {
 public:
  static constexpr std::size_t kBytes = 64 << 10;  // that one direction has room for

  // The caller's end. Null if the system has no memory to share.
  static std::unique_ptr<Rings> make();
  // The callee's. Error(kCorrupt) for a file that has no rings.
  static std::unique_ptr<Rings> of_file(Fd file);

  int descriptor() const { return file_.get(); }

  // Copies what there is room for; 0 if there is none, of which the reader then knows.
  std::size_t write(std::span<const iovec> pieces);
  // Whether the reader waits, to be asked after writing: a doorbell is due.
  bool must_ring_reader();

  bool has_data() const;
  // Copies what is there. Error(kCorrupt) if the writer breaks the rules.
  std::size_t read(std::span<std::byte> into);
  // Whether the writer waits for room that there is now, to be asked after reading.
  bool must_ring_writer();
  // From now on the writer rings. False if something is there already.
  bool wait_for_data();
  // From now on it does not.
  void do_not_wait();

 private:
  struct Header;
  struct Direction {
    Header* header = nullptr;
    std::byte* bytes = nullptr;
    std::uint64_t position = 0;  // of this end, in bytes from the beginning
  };
  Rings(Fd file, Mapping mapping, bool is_caller);

  const Fd file_;
  const Mapping mapping_;
  Direction out_, in_;
};

}  // namespace paceline::rpc
