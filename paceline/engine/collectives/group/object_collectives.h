#pragma once

// Exchanges strings of any length between ranks: names, settings, JSON, anything that a program
// writes as text or bytes. The lengths travel first, so ranks need not know them. Meant for short
// texts and small objects: they are copied, and each receiver keeps all objects in memory.
// paceline/training/tensor/collectives.h does the same for lists of tensors.
//
// Errors are those of collectives. If an object is too long, every rank throws Error(kInvalid),
// which names the rank that passed the object; the group can continue.
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
  // The limit of the whole call, at least 1 ms; if empty, the group's timeout.
  std::optional<std::chrono::milliseconds> timeout = {};
  // The most bytes of one rank's object. Ranks may have different limits: the smallest one applies,
  // except in a broadcast, where root's applies.
  std::size_t max_bytes = std::size_t{1} << 30;
};

// Collective. Returns root's object on every rank. `root`, also below: a rank of `group`.
std::string broadcast_object(GroupRef group, const std::string& object, int root,
                             const ObjectOptions& options = {});
// Collective. Returns every rank's object, in rank order.
std::vector<std::string> all_gather_object(GroupRef group, const std::string& object,
                                           const ObjectOptions& options = {});
// Collective. Returns every rank's object, in rank order, at root, and an empty list elsewhere.
// Root needs memory for as many objects as there are ranks, each as long as the longest.
std::vector<std::string> gather_objects(GroupRef group, const std::string& object, int root,
                                        const ObjectOptions& options = {});

// Collective. Runs `action` on root only; an error of `action` is thrown on every rank, so that no
// rank continues alone. Each call makes up to three small broadcasts, so it is for rare events.
void on_rank(int root, GroupRef group, const std::function<void()>& action);

}  // namespace paceline

namespace paceline::detail {

// These functions throw the error of one rank on all ranks of a group, so that no rank continues
// alone. They take a few small collectives, so they are for rare events. Programs use on_rank().

// Collective. Throws root's error on every rank, if root has one.
void throw_error_of(GroupRef group, int root, const std::optional<Error>& own);
// Collective. Throws on every rank the error of the first rank that has one.
void throw_first_error(GroupRef group, const std::optional<Error>& own);

}  // namespace paceline::detail
