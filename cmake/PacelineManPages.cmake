# Manual pages of the command `paceline` and its commands, made from their help when the command has been built. Without Python, and in a
# build for another processor, there are none.
find_package(Python3 COMPONENTS Interpreter)
find_program(GZIP_PROGRAM gzip)
if(Python3_Interpreter_FOUND AND GZIP_PROGRAM AND NOT CMAKE_CROSSCOMPILING)
  set(man ${CMAKE_BINARY_DIR}/man)
  add_custom_command(OUTPUT ${man}/made
    COMMAND Python3::Interpreter ${PROJECT_SOURCE_DIR}/tools/man_pages.py $<TARGET_FILE:paceline> ${man}/man1
    COMMAND sh -c "exec ${GZIP_PROGRAM} -9nf ${man}/man1/*.1"
    COMMAND ${CMAKE_COMMAND} -E touch ${man}/made
    DEPENDS paceline ${PROJECT_SOURCE_DIR}/tools/man_pages.py VERBATIM)
  add_custom_target(paceline_man ALL DEPENDS ${man}/made)
  add_dependencies(paceline_installable paceline_man)
  set_property(TARGET paceline_installable APPEND PROPERTY PACELINE_FILES ${man}/made)
  install(DIRECTORY ${man}/man1 DESTINATION ${CMAKE_INSTALL_MANDIR} COMPONENT runtime)
endif()
