#pragma once

// Sums in shared memory of ranks on several packages: each package adds up its own ranks'
// contributions first, then the packages' sums are added up, so that a byte crosses between
// packages once for a package, not once for a rank.
//
// Words. With n ranks there are S packages of m ranks each, one after the other, and every package
// is a whole subtree of the promised order (subtrees.h); m is a power of two, so a package's sum is
// a partial, in float32 for 16-bit types. The rank at position l of its package carries *lane* l:
// of all_reduce and reduce the l-th of m chunks, of reduce_scatter the blocks of the ranks at
// position l of every package.
//
// all_reduce, three phases: a rank adds up its package's contributions to its lane; adds up the
// packages' sums of that lane, so every package makes the whole result for itself; fetches the
// other lanes from its own package. reduce: only the root's package makes the result.
// reduce_scatter: what a rank adds up first is for the other packages; its own block it makes of
// its package's contributions and the others' sums, and nothing is fetched.
//
// Elements between packages, in all, with N in a buffer (direct: as in direct.h, read in place or
// staged):
//               direct               by package, in accumulators
//   all_reduce  2m(S-1)N             S(S-1)N
//   reduce      m(S-1)N(1 + 1/n)     (S-1)N
//   r_scatter   m(S-1)N              (S-1)N
// For two packages these are nN and 2N for all_reduce, half of either in each direction. The price
// is one more pass over what a package's ranks have, and more meetings.

#include "paceline/engine/collectives/algorithms/schedule.h"

namespace paceline {

// Whether this can carry out `op`.
bool serves_by_package(Op op);

// Pure. spec.hosts: the packages. By the rules of in_shared_memory.h; partials lie where
// partials_offset() says. Requires: serves_by_package(spec.op), packages that are equal subtrees of
// two ranks or more.
Schedule build_by_package_in_place(const ScheduleSpec& spec);
Schedule build_by_package_staged(const ScheduleSpec& spec);

// Bytes that cross between packages in one call, `count` as in Collective. Requires: as above.
struct PackageBytes {
  std::uint64_t direct = 0, by_package = 0;
};
PackageBytes bytes_between_packages(Op op, Dtype dtype, std::size_t count, const Hosts& packages);

// The most elements of a call, or of each of its blocks, for which partials fit into `room` bytes
// of each rank, after the rank's input where `with_input`; at least 1. partials_offset() says where
// they then begin, in bytes.
std::size_t by_package_piece_count(Op op, Dtype dtype, const Hosts& packages, std::size_t room,
                                   bool with_input);
std::size_t partials_offset(Op op, Dtype dtype, const Hosts& packages, std::size_t count,
                            bool with_input);

}  // namespace paceline
