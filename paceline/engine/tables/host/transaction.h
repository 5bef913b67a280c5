#pragma once

// A change of one row and of everything that belongs to it (chains, lists, the session's position),
// which appears as a whole or not at all, even if the worker is killed in the middle.
//
// A worker first writes the new values into its journal, then commits the journal with one
// exchange, then copies the values to their places. All values are absolute, so that another worker
// can copy them again if this one dies after the exchange. If it dies before, nothing has changed.
// A worker that was revoked meanwhile cannot commit.
//
// The row's version is odd while the values are copied, so a reader never takes half a row.
//
// Requires: the worker holds the locks of everything that it changes. Thread safety: none; one
// transaction at a time for each worker.

#include <cstdint>

#include "paceline/engine/tables/host/table_access.h"

namespace paceline::tables {

class Transaction {
 public:
  explicit Transaction(const TableAccess& access);

  void set(Word& word, std::uint32_t value) { add(&word, value, sizeof word); }
  void set(LongWord& word, std::uint64_t value) { add(&word, value, sizeof word); }
  // The entry whose version tells readers of the change.
  void changes(Entry& entry);
  // Where the new row is to be written before commit(), for these data.
  float* image_of(std::uint32_t data);

  // Makes the change. Throws Error(kPeerLost) if the worker was revoked: nothing has changed.
  void commit();

 private:
  void add(const void* place, std::uint64_t value, std::uint32_t bytes);

  const TableAccess& access_;
  Journal& journal_;
};

// Copies the values of a committed journal to their places. Any number of times.
void apply_journal(const TableMemory& memory, std::uint32_t worker);

// The phase of a journal, without the number of its transaction.
JournalPhase phase_of(const Journal& journal);
// Sets the phase, with the number of the next transaction.
void end_transaction(Journal& journal);
// Makes an idle journal refuse its next commit. Returns false if it is committed.
bool revoke(Journal& journal);

}  // namespace paceline::tables
