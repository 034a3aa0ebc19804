# Writes the commit of a checkout to a file: cmake -D SOURCE=… -D OUTPUT=… -P commit.cmake. "unknown" outside of a checkout and without git.
execute_process(COMMAND git -C ${SOURCE} rev-parse HEAD OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
execute_process(COMMAND git -C ${SOURCE} status --porcelain -- . ":(exclude)results" OUTPUT_VARIABLE changes ERROR_QUIET)
if(NOT "${failed}" STREQUAL "0")
  set(commit "unknown")
elseif(changes)
  string(APPEND commit " with uncommitted changes")
endif()
file(WRITE ${OUTPUT} "${commit}\n")
