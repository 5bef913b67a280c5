// Ranks that exchange numbers, texts and messages without LibTorch:
//
//   paceline run --nproc-per-node 4 plain_calls

#include <cstdio>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "paceline/engine.h"

int main() {
  const auto group = paceline::init_process_group();
  const int rank = group->rank(), ranks = group->world_size();

  // Each rank adds up its part of the sum 1 - 1/3 + 1/5 - ...; together the parts are pi / 4.
  double part = 0;
  for (int i = rank; i < 1'000'000; i += ranks) part += (i % 2 == 0 ? 1.0 : -1.0) / (2.0 * i + 1);
  const double pi = 4 * paceline::all_reduce_value(group, part);

  // A vector is passed as a span, in place. The next call starts before this call has ended.
  std::vector<float> values(1000, static_cast<float>(rank));
  const auto work =
      group->all_reduce(std::span(values), paceline::ReduceOp::kMax, {.async_op = true});

  // The output comes first, then the input: every rank gets the squares of all ranks.
  const std::vector<int> mine = {rank * rank};
  std::vector<int> squares(static_cast<std::size_t>(ranks));
  group->all_gather(std::span(squares), std::span(mine));
  work->wait();

  // Rank 0 sends a text to all others, and each rank sends a number to the next rank.
  const std::string word = paceline::broadcast_object(group, std::string("done"), 0);
  std::vector<int> token = {rank}, received = token;
  if (ranks > 1) {
    const auto sent = group->isend(std::span(token), (rank + 1) % ranks);
    group->recv(std::span(received), (rank + ranks - 1) % ranks);
    sent->wait();
  }

  if (rank == 0)
    std::printf("pi %.4f, largest %.0f, sum of squares %d, from rank %d, %s\n", pi, values[0],
                std::accumulate(squares.begin(), squares.end(), 0), received[0], word.c_str());
}
