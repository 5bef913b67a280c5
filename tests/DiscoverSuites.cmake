# Writes OUT: one CTest test for each suite of PROGRAM, named PREFIX.<suite>, whose cases run in one process. After the program is built:
#   cmake -D PROGRAM=… -D PREFIX=… -D LABELS=… -D TIMEOUT=… -D APART="suite;…" -D ENVIRONMENT="ENVIRONMENT NAME=VALUE" -D OUT=… -P DiscoverSuites.cmake
# Suites APART are left out. A case that is skipped would not be seen among others that pass, so it fails its suite: such suites are APART.
cmake_minimum_required(VERSION 3.25)
execute_process(COMMAND ${PROGRAM} --gtest_list_tests OUTPUT_VARIABLE listed COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "(^|\n)[^ \n]+\\." suites "${listed}")
set(text "")
list(JOIN ENVIRONMENT " " ENVIRONMENT)
foreach(suite IN LISTS suites)
  string(REGEX REPLACE "^\n?(.*)\\.$" "\\1" suite "${suite}")
  if(NOT suite IN_LIST APART)
    string(APPEND text "add_test([==[${PREFIX}.${suite}]==] [==[${PROGRAM}]==] [==[--gtest_filter=${suite}.*]==])
set_tests_properties([==[${PREFIX}.${suite}]==] PROPERTIES TIMEOUT ${TIMEOUT} LABELS [==[${LABELS}]==]
  FAIL_REGULAR_EXPRESSION [==[\\[  SKIPPED \\]]==] ${ENVIRONMENT})
")
  endif()
endforeach()
file(WRITE ${OUT} "${text}")
