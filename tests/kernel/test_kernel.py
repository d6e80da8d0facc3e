"""The Monarch kernel speaks the Jupyter protocol: the conformance suite of jupyter_kernel_test."""

import jupyter_kernel_test
import pytest

from tests.kernel.client import wait_for_hosts


@pytest.mark.slow
class TestProtocol(jupyter_kernel_test.KernelTests):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        wait_for_hosts(cls.km)

    kernel_name = "monarch"
    language_name = "python"
    file_extension = ".py"
    code_hello_world = "print('hello, world')"
    code_stderr = "import sys; print('test', file=sys.stderr)"
    completion_samples = [{"text": "zi", "matches": {"zip"}}]
    complete_code_samples = [
        "1",
        "print('hello, world')",
        "def f(x):\n  return x*2\n\n\n",
        "%mesh status",
        "%%mesh gpus=0\nprint(rank)\n\n",
    ]
    incomplete_code_samples = ["print('''hello", "def f(x):\n  x*2"]
    invalid_code_samples = ["import = 7q"]
    code_page_something = "zip?"
    code_generate_error = "raise ValueError('x')"
    code_execute_result = [
        {"code": "1+2+3", "result": "6"},
        {"code": "[n*n for n in range(1, 4)]", "result": "[1, 4, 9]"},
    ]
    code_display_data = [
        {
            "code": "from IPython.display import HTML, display; display(HTML('<b>test</b>'))",
            "mime": "text/html",
        }
    ]
    code_history_pattern = "1?2*"
    supported_history_operations = ("tail", "search")
    code_inspect_sample = "zip"
    code_clear_output = "from IPython.display import clear_output; clear_output()"
