# Writes OUT: CTest tests for the suites of PROGRAM, named PREFIX.<suite>[+<suite>…]: TOGETHER suites for each test. After the program is built:
#   cmake -D PROGRAM=… -D PREFIX=… -D LABELS=… -D TIMEOUT=… -D APART="suite;…" -D SLOW="suite;…" -D TOGETHER=… -D ENVIRONMENT="ENVIRONMENT NAME=VALUE"
#     -D OUT=… -P DiscoverSuites.cmake
# A test of several suites may take twice TIMEOUT. Suites APART are left out; each SLOW suite is a test of its own with the label slow. A
# case that is skipped would not be seen among others that pass, so it fails its test: such suites are APART.
cmake_minimum_required(VERSION 3.25)
execute_process(COMMAND ${PROGRAM} --gtest_list_tests OUTPUT_VARIABLE listed COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "(^|\n)[^ \n]+\\." suites "${listed}")
list(TRANSFORM suites REPLACE "^\n?(.*)\\.$" "\\1")
list(REMOVE_ITEM suites ${APART} ${SLOW} "")
list(JOIN ENVIRONMENT " " ENVIRONMENT)
set(text "")
function(add_suites labels)  # ARGN: the suites
  list(JOIN ARGN "+" name)
  list(TRANSFORM ARGN APPEND ".*")
  list(JOIN ARGN ":" filter)
  set(timeout ${TIMEOUT})
  set(cost "")
  if(ARGC GREATER 2)
    math(EXPR timeout "2 * ${timeout}")
    set(cost "COST 20")  # so that none runs alone at the end
  endif()
  string(APPEND text "add_test([==[${PREFIX}.${name}]==] [==[${PROGRAM}]==] [==[--gtest_filter=${filter}]==])
set_tests_properties([==[${PREFIX}.${name}]==] PROPERTIES TIMEOUT ${timeout} ${cost} LABELS [==[${labels}]==]
  FAIL_REGULAR_EXPRESSION [==[\\[  SKIPPED \\]]==] ${ENVIRONMENT})
")
  set(text "${text}" PARENT_SCOPE)
endfunction()
foreach(suite IN LISTS SLOW)
  add_suites("${LABELS};slow" ${suite})
endforeach()
while(suites)
  list(SUBLIST suites 0 ${TOGETHER} group)
  list(REMOVE_ITEM suites ${group})
  add_suites("${LABELS}" ${group})
endwhile()
file(WRITE ${OUT} "${text}")
