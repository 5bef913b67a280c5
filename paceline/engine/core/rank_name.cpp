#include "paceline/engine/core/rank_name.h"

namespace paceline {
namespace {

std::string number_in_world(int in_world) {
  return "rank " + std::to_string(in_world) + " of the world";
}

}  // namespace

std::string rank_name(int rank, int in_world) {
  const std::string name = "rank " + std::to_string(rank);
  return rank == in_world ? name : name + " (" + number_in_world(in_world) + ")";
}

std::string rank_name(int rank, int in_world, const std::string& host) {
  const std::string also = rank == in_world ? "" : number_in_world(in_world) + ", ";
  return "rank " + std::to_string(rank) + " (" + also + host + ")";
}

}  // namespace paceline
