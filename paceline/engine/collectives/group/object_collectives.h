#pragma once

// Strings of any length, between ranks: names, settings, JSON, anything that a program writes as
// text or bytes. The lengths travel first, so that ranks need not know them. For messages and small
// objects: they are copied, and every rank keeps what it gets in memory.
// paceline/training/tensor/tensor_lists.h has the same for lists of tensors.
//
// Errors are those of collectives. Too long an object is Error(kInvalid) on every rank, with the
// rank that gave it, and the group goes on.
//
// Thread safety: that of ProcessGroup.

#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "paceline/engine/collectives/group/process_group.h"

namespace paceline {

struct ObjectOptions {
  // For the whole call, at least 1 ms; the group's when not given.
  std::optional<std::chrono::milliseconds> timeout = {};
  // The most bytes of one rank's object. Ranks may differ: the smallest limit counts, in a
  // broadcast root's.
  std::size_t max_bytes = std::size_t{1} << 30;
};

// Collective. Root's object, on every rank. `root`, also below: a rank of `group`.
std::string broadcast_object(ProcessGroup& group, const std::string& object, int root,
                             const ObjectOptions& options = {});
// Collective. Every rank's object, in rank order.
std::vector<std::string> all_gather_object(ProcessGroup& group, const std::string& object,
                                           const ObjectOptions& options = {});
// Collective. As all_gather_object at root; empty elsewhere. Takes the memory of the longest object
// for each rank at root.
std::vector<std::string> gather_objects(ProcessGroup& group, const std::string& object, int root,
                                        const ObjectOptions& options = {});

// An error of one rank that all ranks of a group shall throw, so that none goes on alone. A few
// small collectives, for what is rare.

// Collective. Throws root's error on every rank, where there is one.
void throw_error_of(ProcessGroup& group, int root, const std::optional<Error>& own);
// Collective. Throws on every rank the error of the first rank that has one.
void throw_first_error(ProcessGroup& group, const std::optional<Error>& own);
// Collective. Only root does `action`; its failure is thrown on every rank.
void on_rank(int root, ProcessGroup& group, const std::function<void()>& action);

}  // namespace paceline
