// wanted: the group comes first: write all_reduce(group, tensor)
#include <vector>

#include <paceline/paceline.h>

int main() {
  std::vector<float> values(3);
  paceline::all_reduce(values);
}
