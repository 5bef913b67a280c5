// Prints a line with the library that the first argument names, makes the file that the second one
// names, and waits to be ended. Only the line of "iostream" is flushed.

#include <cstdio>
#include <fstream>
#include <iostream>
#include <string>

#include <unistd.h>

int main(int, char** argv) {
  const std::string way = argv[1];
  if (way == "C") std::printf("line of C\n");
  if (way == "C++") std::cout << "line of C++\n";
  if (way == "iostream") {
    std::ios::sync_with_stdio(false);
    // Without the flush no terminal would show the line.
    std::cout << "line of iostream" << std::endl;
  }
  std::ofstream(argv[2]) << "";
  for (;;) pause();
}
