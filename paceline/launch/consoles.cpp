#include "paceline/launch/consoles.h"

namespace paceline::launch {

void Consoles::watch_for_room() {
  for (Watched* one : {&out_, &err_}) {
    const bool wanted = !one->console.empty();
    if (wanted == one->watched) continue;
    one->watched = wanted;
    if (wanted) {
      loop_.watch(
          one->console.fd(), [one] { one->console.flush(); }, EPOLLOUT);
    } else {
      loop_.forget(one->console.fd());
    }
  }
}

}  // namespace paceline::launch
