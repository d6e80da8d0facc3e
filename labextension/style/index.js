import '../../monarch_nb/notebook/live/front/mesh.css';
import './panel.css';
import './log.css';
