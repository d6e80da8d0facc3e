// "!": not by the usual loaders, which bring 4 KB of their own
import '!../sheet.cjs!../../monarch_nb/notebook/view/front/mesh.css';
import '!../sheet.cjs!./panel.css';
import '!../sheet.cjs!./log.css';
import '!../sheet.cjs!./variables.css';
